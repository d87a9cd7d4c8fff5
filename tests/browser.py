"""Opens a file in headless Chromium, runs JavaScript steps in it and prints what they returned, as JSON.

Run as a command of its own (`python tests/browser.py FILE.html STEPS.json [PNG]`), so that a browser crash fails one
test. The engine is QtWebEngine (PyQt6-WebEngine, or PySide6 where it brings QtWebEngine), which is Chromium. STEPS is
a list of expressions. Printed: `{"version", "console", "requests", "results"}`; `console` holds warnings and errors,
`requests` everything loaded besides the file itself.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

SIZE = (1366, 768)  # a laptop screen
TIMEOUT_MS = 120_000
SETTLE_MS = 1_500


def main() -> int:
    file, steps = Path(sys.argv[1]).resolve(), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    picture = sys.argv[3] if len(sys.argv) > 3 else None
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", "--no-sandbox --disable-gpu")
    try:
        from PyQt6.QtCore import QTimer, QUrl
        from PyQt6.QtWebEngineCore import QWebEnginePage, QWebEngineUrlRequestInterceptor, qWebEngineChromiumVersion
        from PyQt6.QtWebEngineWidgets import QWebEngineView
        from PyQt6.QtWidgets import QApplication
    except ImportError:
        from PySide6.QtCore import QTimer, QUrl
        from PySide6.QtWebEngineCore import QWebEnginePage, QWebEngineUrlRequestInterceptor, qWebEngineChromiumVersion
        from PySide6.QtWebEngineWidgets import QWebEngineView
        from PySide6.QtWidgets import QApplication

    seen: dict[str, Any] = {"version": qWebEngineChromiumVersion(), "console": [], "requests": [], "results": []}

    class Page(QWebEnginePage):
        def javaScriptConsoleMessage(self, level: Any, message: str, line: int, source: str) -> None:  # noqa: N802
            if level != QWebEnginePage.JavaScriptConsoleMessageLevel.InfoMessageLevel:
                seen["console"].append(f"{message} (line {line})")

    class Requests(QWebEngineUrlRequestInterceptor):
        def interceptRequest(self, info: Any) -> None:  # noqa: N802
            url = info.requestUrl().toString()
            if not url.startswith(("data:", "blob:")) and url != QUrl.fromLocalFile(str(file)).toString():
                seen["requests"].append(url)

    app = QApplication(sys.argv[:1])
    view = QWebEngineView()
    page, requests = Page(view), Requests()
    page.setUrlRequestInterceptor(requests)
    view.setPage(page)
    view.resize(*SIZE)
    view.show()

    def run(index: int) -> None:
        if index == len(steps):
            if picture:
                QTimer.singleShot(SETTLE_MS, lambda: (view.grab().save(picture), app.quit()))
            else:
                app.quit()
            return
        page.runJavaScript(steps[index], lambda result: (seen["results"].append(result), run(index + 1)))

    page.loadFinished.connect(lambda ok: QTimer.singleShot(SETTLE_MS, lambda: run(0)) if ok else app.exit(1))
    QTimer.singleShot(TIMEOUT_MS, lambda: app.exit(3))
    view.load(QUrl.fromLocalFile(str(file)))
    code = int(app.exec())
    print(json.dumps(seen), flush=True)
    os._exit(code)  # Qt's teardown order is not ours to fight with


if __name__ == "__main__":
    sys.exit(main())
