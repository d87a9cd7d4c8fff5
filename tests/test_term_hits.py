"""Words, content Words and term_hits: one row a rule, with its reason."""

import time

import pytest

from reward.planner_reward import content_words, term_hits, words

WORDS = [
    # text, Words, reason
    ("", (), "no text, no Words"),
    ("-- !? _ 👟", (), "punctuation, underscores and symbols are no Words"),
    ("Trail Running", ("trail", "running"), "without case"),
    ("16-inch", ("16", "inch"), "a hyphen ends a run"),
    ("wi_fi", ("wi", "fi"), "so does an underscore, which is no letter"),
    ("iPhone15 3.5mm", ("iphone15", "3", "5mm"), "letters and digits share a run"),
    ("ＮＩＫＥ ２０cm", ("nike", "20cm"), "NFKC: full width"),
    ("ﬁt ①", ("fit", "1"), "NFKC: ligatures and circled digits"),
    ("CAFÉ cafe\u0301", ("café", "café"), "NFKC composes accents"),
    ("Straße", ("strass",), "case folding makes it strasse, and plural folding takes the e after s"),
    ("Обувь", ("обувь",), "other scripts are runs as well"),
    ("men's", ("man", "s"), "an apostrophe ends a run; no Word becomes empty"),
    ("跑鞋", ("跑鞋",), "a pair of characters"),
    ("防水跑鞋", ("防水", "水跑", "跑鞋"), "each pair of neighbours"),
    ("鞋", ("鞋",), "a run of one character is that character"),
    ("鞋，包", ("鞋", "包"), "punctuation ends a Chinese run, too"),
    ("跑・鞋", ("跑", "鞋"), "the middle dot is punctuation, though it stands among the kana"),
    ("5G手机", ("5g", "手机"), "a run ends where Chinese begins"),
    ("手机5G壳", ("手机", "5g", "壳"), "and where it ends"),
    ("スニーカー", ("スニ", "ニー", "ーカ", "カー"), "Japanese, the long mark included"),
    ("ｽﾆｰｶｰ", ("スニ", "ニー", "ーカ", "カー"), "half width kana by NFKC"),
    ("운동화", ("운동", "동화"), "Korean"),
    ("二〇年々", ("二〇", "〇年", "年々"), "the Chinese zero and the iteration mark are characters"),
    ("㐀𠀀", ("㐀𠀀",), "rare characters are Chinese as well"),
]

FOLDED = [
    # one form, another, reason
    ("shoes", "shoe", "a final s"),
    ("watches", "watch", "and the e after ch"),
    ("brushes", "brush", "and the e after sh"),
    ("boxes", "box", "and the e after x"),
    ("dresses", "dress", "and the e after s; the singular keeps its double s"),
    ("waltzes", "waltz", "and the e after z"),
    ("potatoes", "potato", "and the e after o"),
    ("cases", "case", "the singular loses the same e"),
    ("houses", "house", "so does this one"),
    ("sizes", "size", "and this one"),
    ("axes", "axe", "and this one"),
    ("aches", "ache", "and this one"),
    ("batteries", "battery", "ie becomes y"),
    ("movies", "movie", "also where the singular has it"),
    ("ties", "tie", "also in short ones"),
    ("buses", "bus", "no s is dropped after u"),
    ("irises", "iris", "nor after i"),
    ("glasses", "glass", "nor after s"),
    ("lenses", "lens", "an irregular one: its singular loses an s"),
    ("canvases", "canvas", "likewise"),
    ("gases", "gas", "likewise"),
    ("atlases", "atlas", "likewise"),
    ("quizzes", "quiz", "a doubled letter"),
    ("men", "man", "irregular"),
    ("women", "woman", "irregular"),
    ("children", "child", "irregular"),
    ("feet", "foot", "irregular"),
    ("teeth", "tooth", "irregular"),
    ("geese", "goose", "irregular, then the e after s"),
    ("mice", "mouse", "irregular, then the e after s"),
    ("knives", "knife", "irregular"),
    ("shelves", "shelf", "irregular"),
    ("wolves", "wolf", "irregular"),
    ("scarves", "scarf", "irregular"),
    ("leaves", "leaf", "irregular"),
    ("cacti", "cactus", "irregular"),
    ("oxen", "ox", "irregular"),
    ("Knives", "KNIFE", "the table is looked up without case"),
]
SPELLED = [
    # word, its Word, reason
    ("shoes", "sho", "the e goes after o"),
    ("mice", "mous", "to the singular first, then on"),
    ("movies", "movy", "ie to y"),
    ("eyes", "eye", "no e is dropped after y"),
    ("tapes", "tape", "nor after p"),
    ("bathes", "bathe", "th is neither ch nor sh"),
    ("dress", "dress", "no s after s"),
    ("bus", "bus", "no s after u"),
    ("tennis", "tennis", "no s after i"),
    ("buses", "bus", "folded once, not until nothing changes"),
    ("s", "s", "no Word becomes empty"),
    ("es", "e", "a single e stays"),
    ("e", "e", "a single e stays"),
    ("ss", "ss", "no s after s"),
    ("ie", "y", "not empty either"),
    ("501s", "501", "digits before the s"),
    ("gas", "ga", "the rule knows no nouns"),
    ("pies", "py", "ies of three letters and more"),
    ("sexes", "sex", "drop s, then e after x"),
    ("toes", "to", "drop s, then e after o"),
    ("oasis", "oasis", "not after i"),
    ("men", "man", "table"),
]
CONTENT = [
    # phrase, content Words, reason
    ("men's TV stand", ("man", "stand"), "one or two ASCII letters are left out"),
    ("TV", ("tv",), "a phrase without other Words uses all of them"),
    ("a of", ("a", "of"), "all of them, in order"),
    ("5g 42 led", ("5g", "42", "led"), "digits are no letters; three letters are enough"),
    ("gas tank", ("tank",), "length is judged after folding: gas has become ga"),
    ("toes ring", ("ring",), "length is judged after folding: toes has become to"),
    ("ür 鞋 usb", ("ür", "鞋", "usb"), "only ASCII letters are left out"),
    ("", (), "nothing in, nothing out"),
]


@pytest.mark.parametrize(("text", "expected", "reason"), WORDS)
def test_words(text: str, expected: tuple[str, ...], reason: str) -> None:
    assert words(text) == expected, reason


@pytest.mark.parametrize(("one", "other", "reason"), FOLDED)
def test_plural_and_singular_are_one_word(one: str, other: str, reason: str) -> None:
    assert words(one) == words(other), reason
    assert len(words(one)) == 1


@pytest.mark.parametrize(("word", "expected", "reason"), SPELLED)
def test_folding_as_written(word: str, expected: str, reason: str) -> None:
    assert words(word) == (expected,), reason


@pytest.mark.parametrize(("phrase", "expected", "reason"), CONTENT)
def test_content_words(phrase: str, expected: tuple[str, ...], reason: str) -> None:
    assert content_words(phrase) == expected, reason


HITS = [
    # term, text, hit, reason
    ("watch", "Smart Watch", True, "a whole Word, without case"),
    ("watch", "bird watching guide", False, "a whole Word, not its beginning"),
    ("watch", "stopwatch", False, "nor its end"),
    ("watch", "three Watches", True, "plural folded"),
    ("16-inch", "laptop 16 inch", True, "punctuation is no difference"),
    ("16 inches", "laptop 16-inch", True, "in either direction"),
    ("16-inch", "laptop 16inch", False, "one run is another Word"),
    ("running shoes", "Running Shoe", True, "consecutive Words"),
    ("running shoes", "running trail shoes", False, "not with another between"),
    ("running shoes", "shoes running", False, "nor in another order"),
    ("running shoes", "running 男 shoes", False, "a Chinese run between is one between"),
    ("running shoes", "running", False, "all of them"),
    ("ＷＡＴＣＨ", "watch", True, "NFKC makes the term ASCII"),
    ("men’s shoes", "men's shoes", True, "the term's letters are ASCII; punctuation is ignored"),
    ("5g", "5G手机", True, "the script ends the Word"),
    ("", "anything", False, "an empty term never hits"),
    ("  ", "a  b", False, "nor does white space"),
    ("!?", "what!?", False, "nor punctuation: it has no Word"),
    ("👟", "👟 shoes", False, "nor a symbol"),
    ("。", "好。", False, "nor Chinese punctuation"),
    ("watch", "", False, "nothing hits in an empty text"),
    ("跑鞋", "男士跑鞋", True, "a substring"),
    ("跑鞋", "跑步鞋", False, "not a scattered one"),
    ("T恤", "纯棉t恤衫", True, "without case"),
    ("Ｔ恤", "t恤", True, "NFKC"),
    ("跑 鞋", "跑鞋", True, "white space inside the term may be missing in the text"),
    ("跑鞋", "跑 鞋", False, "but the term's own neighbours are neighbours"),
    ("5G手机", "5G 手机", True, "between scripts white space may differ"),
    ("5G 手机", "新款5G手机", True, "in either direction"),
    (" 跑鞋 ", "跑鞋", True, "white space round the term is nothing"),
    ("café", "le Café noir", True, "any other term is a substring"),
    ("café", "cafés", True, "so its plural holds it"),
    ("red|跑鞋", "跑鞋", False, "a term is no pattern"),
    ("鞋", "跑鞋", True, "one character"),
]
BEFORE = ["no", "non", "not", "without", "faux", "fake", "vegan", "imitation", "artificial", "synthetic"]
CHINESE_BEFORE = ["无", "非", "免", "人造", "仿", "假", "不含"]
NEGATED = [
    ("leather", "no real leather", True, "only directly beside it"),
    ("leather", "faux fur, leather", True, "another negated thing"),
    ("leather", "Non-Leather", False, "hyphens are ignored"),
    ("leather", "No. Leather!", False, "all punctuation is"),
    ("leather", "leather no", True, "these stand before"),
    ("leather", "not: ... leather", False, "any amount of it"),
    ("leather", "imitations leather", False, "a negation is a Word, plural folded"),
    ("leather", "another leather", True, "a Word that ends in no letters of it"),
    ("leather", "piano leather", True, "a Word that ends in a negation is none"),
    ("leather", "faux leather and leather", True, "one occurrence without is enough"),
    ("leather", "leather, faux leather", True, "wherever it stands"),
    ("leather", "faux leather, vegan leather", False, "all of them negated"),
    ("alcohol", "alcohol-free wipes", False, "free, after it"),
    ("alcohol", "alcohol free", False, "at the end of the text"),
    ("alcohol", "free alcohol", True, "free stands after, not before"),
    ("alcohol", "alcohol freedom", True, "a whole Word"),
    ("alcohol", "alcohol 5 free", True, "directly after"),
    ("gloves", "gloves free shipping", True, "but not free shipping"),
    ("gloves", "gloves, FREE-Shipping today", True, "in any spelling"),
    ("gloves", "gloves free shippings", True, "plural folded"),
    ("gloves", "gloves free ship", False, "ship is not shipping"),
    ("gloves", "gloves free of shipping", False, "nor is free of shipping"),
    ("gloves", "no gloves free shipping", False, "a negation before stays one"),
    ("gluten", "gluten-free free shipping", False, "free twice"),
    ("non-stick", "Non-Stick Pan", True, "a term's own negation belongs to it"),
    ("non-stick", "stick", False, "and is matched whole"),
    ("stick", "non-stick pan", False, "without it the occurrence is negated"),
    ("artificial flowers", "Artificial Flower Bouquet", True, "matched whole"),
    ("flowers", "artificial flowers", False, "negated"),
    ("artificial flowers", "no artificial flowers", False, "a negation outside the term counts"),
    ("sugar free", "sugar-free gum", True, "matched whole"),
    ("sugar free", "sugar-free, free shipping", True, "what follows is free shipping"),
    ("酒精", "无酒精湿巾", False, "Chinese"),
    ("酒精", "无 酒精", False, "spaces are ignored"),
    ("酒精", "不含：酒精", False, "punctuation is ignored"),
    ("酒精", "含酒精", True, "含 alone is no negation"),
    ("酒精", "无味酒精", True, "only directly beside it"),
    ("酒精", "酒精无", True, "only before it"),
    ("皮", "仿皮，真皮", True, "one occurrence without is enough"),
    ("皮皮", "假皮皮皮", True, "occurrences may overlap"),
    ("人造花", "人造花束", True, "its own negation is matched whole"),
    ("花", "人造花", False, "negated"),
    ("无线", "无线耳机", True, "a term that begins with one"),
    ("线", "无线耳机", False, "and its rest"),
    ("手机", "5G手机", True, "another script directly before"),
    ("leather", "无leather", False, "a Chinese negation before an ASCII term"),
    ("leather", "仿 leather", False, "with a space"),
    ("leather", "不含任何leather", True, "not directly"),
    ("跑鞋", "no 跑鞋", False, "an English negation before a Chinese term"),
    ("跑鞋", "no跑鞋", False, "without a space"),
    ("跑鞋", "Not…跑鞋", False, "with punctuation"),
    ("跑鞋", "piano跑鞋", True, "a whole Word again"),
    ("跑鞋", "imitationimitation跑鞋", True, "only the end of a long one"),
    ("跑鞋", "nos 跑鞋", False, "plural folded"),
    ("跑鞋", "not " + "…" * 40 + " 跑鞋", False, "any amount of punctuation"),
    ("跑鞋", "无跑鞋，", False, "at the beginning of the text"),
    ("跑鞋", "，跑鞋无，", True, "nothing stands before it: the end of the text is not beside its beginning"),
    ("酒精", "5G无酒精", False, "the run directly before it, where scripts meet"),
    ("酒精", "无5G酒精", True, "not the run before that"),
    ("皮", "皮free", False, "at the beginning of the text"),
    ("酒精", "酒精free", False, "free after a Chinese term"),
    ("酒精", "酒精 - free", False, "spaces and punctuation ignored"),
    ("酒精", "酒精 free湿巾", False, "free ends where Chinese begins"),
    ("酒精", "酒精 freedom", True, "a whole Word"),
    ("酒精", "酒精 free shipping", True, "but not free shipping"),
    ("酒精", "酒精 free 包邮", False, "Chinese for it is not in the list"),
    ("酒精", "酒精，， free，， shipping", True, "punctuation ignored"),
    ("酒精", "酒精 freefreefreefree", True, "a longer run is another Word"),
]


@pytest.mark.parametrize(("term", "text", "hit", "reason"), HITS + NEGATED)
def test_term_hits(term: str, text: str, hit: bool, reason: str) -> None:
    assert term_hits(term, text) is hit, reason


@pytest.mark.parametrize("negation", BEFORE)
@pytest.mark.parametrize("term", ["leather", "皮"])
def test_each_negation_before(negation: str, term: str) -> None:
    assert not term_hits(term, f"{negation} {term}")
    assert not term_hits(term, f"{negation.upper()}-{term} bag")
    assert term_hits(term, f"{negation} x {term}")
    assert term_hits(f"{negation} {term}", f"{negation} {term}"), "a term's own negation is matched whole"


@pytest.mark.parametrize("negation", CHINESE_BEFORE)
@pytest.mark.parametrize("term", ["leather", "皮"])
def test_each_chinese_negation_before(negation: str, term: str) -> None:
    assert not term_hits(term, f"{negation}{term}包")
    assert not term_hits(term, f"全{negation}。 {term}包")
    assert term_hits(term, f"{negation}的{term}包")
    assert term_hits(f"{negation}{term}", f"{negation}{term}"), "a term's own negation is matched whole"


def test_hits_in_long_texts_take_linear_time() -> None:
    begin = time.process_time()
    assert not term_hits("防水", "非防水，" * 20_000)
    assert not term_hits("leather", "faux leather, " * 20_000)
    assert term_hits("防水", "，" * 80_000 + "防水" + "，" * 80_000)
    assert time.process_time() - begin < 2
