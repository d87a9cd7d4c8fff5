"""The words that the budget rules go by: units of money, measures, bounds, phrases that lift a limit.

Patterns only; what they mean is in ``reward.budget``. All of them run on text from ``reward.numerals.normalise``.
"""

import re

_DIGIT = r"[\d零一二两三四五六七八九]"

_MEASURE = (
    r"个|個|件|双|只(?![要有能想买够是])|支|枝|台|部|套|张|条(?!件)|包(?!邮|装盒)|瓶|盒|箱|罐|袋|桶|杯(?!子)|碗|盘|碟|片|颗|粒"
    r"|根|枚|朵|束|株|棵|盆|串|节|段|页|份|组|批|副|幅|架|辆|艘|盏|座|尊|把(?!握)|本|卷|抽|贴|丸|板|匹|间(?!的)|扇|床|顶(?![天多配格])|打(?![住底止折算得])"
    r"|[人位名岁]|周岁|月龄|码|号|[年月日天](?!花板)|周|星期|小时|分钟|分(?!期)|秒|点(?![以左])|楼|层|次|回|遍|度|℃|°|%|折|倍|成(?![不吗么])|寸|吋|英寸|英尺|尺"
    r"|米|厘米|毫米|公分|公里|里地|公斤|千克|斤|克|吨|升|毫升|平(?![价时常])|立方|瓦|伏|安(?!全)|毫安|马力|转(?!账)|赫兹|像素|兆|帧|代|世|系|款|色|股|排|缸|孔"
    r"|键|目|针|线|档(?!次|位)|级|挡|门|方(?![便案])|克拉|分贝|流明|卡路里|大卡|瓦特|目|线程|核|分之|多?个"
)
_MAX_AFTER = (
    rf"\s?不[到足](?![位手家货底]|\s?(?!一点)(?:{_DIGIT}|[十百千万几数$¥]))|"
    r"\s?(?:以内(?!加减|口算)|之内|以里|内(?![存衣裤胆置里部容饰层侧心外])"
    r"|以下|之下|往下|向下|封顶|打住|打得住|顶天|撑死|到顶|为限|一分不多|能拿下|够不够|就不买了?|or less|max)"
)
_MIN_AFTER = r"\s?(?:及?以上|之上|往上|向上|朝上|起步|起跳|起(?![来买用床])|打底|开外|保底|or more|\+)"
_APPROXIMATE_AFTER = r"\s?(?:左右|上下|附近|前后|样子)"
# What follows a sum that is said to its end: 9块9包邮, 9块9一双, but not 十块五双, where 五 is a count.
_SUM_ENDS = (
    rf"$|\s(?!{_MEASURE})|[;,。、!?~…:/()\[\]【】「」\-到至和或跟与]|\.(?!\d)"
    rf"|{_MAX_AFTER}|{_MIN_AFTER}|{_APPROXIMATE_AFTER}"
    rf"|的|吧|吗|呢|了|啊|包邮|免邮|不包邮|还|就|都|也|能|可以|够|行(?!李)|买|[一每](?:{_MEASURE})|(?<![一1])两(?:{_MEASURE})"
)

# Names by ISO code, lower case. 块, 元 and their like belong to no currency alone.
CURRENCIES: dict[str, frozenset[str]] = {
    "CNY": frozenset({"人民币", "rmb", "cny", "yuan", "¥", "软妹币"}),
    "USD": frozenset({"美元", "美金", "usd", "us$", "$", "刀", "美刀", "dollar", "dollars", "buck", "bucks"}),
    "HKD": frozenset({"港元", "港币", "hkd", "hk$", "蚊"}),
    "TWD": frozenset({"新台币", "台币", "twd", "nt$"}),
    "EUR": frozenset({"欧元", "欧", "eur", "euro", "euros", "€"}),
    "GBP": frozenset({"英镑", "镑", "gbp", "£", "pounds"}),
    "JPY": frozenset({"日元", "日币", "jpy", "円"}),
    "KRW": frozenset({"韩元", "韩币", "krw", "₩"}),
    "AUD": frozenset({"澳元", "澳币", "澳刀", "aud"}),
    "CAD": frozenset({"加元", "加币", "加刀", "cad"}),
    "SGD": frozenset({"新加坡元", "新币", "sgd"}),
    "THB": frozenset({"泰铢", "铢", "thb"}),
    "RUB": frozenset({"卢布", "rub"}),
    "INR": frozenset({"印度卢比", "印度卢布", "卢比", "inr"}),
    "NGN": frozenset({"奈拉", "ngn"}),
    "CHF": frozenset({"瑞士法郎", "chf"}),
    "MOP": frozenset({"澳门元", "澳门币", "mop"}),
    "MYR": frozenset({"马币", "林吉特", "myr"}),
    "VND": frozenset({"越南盾", "vnd"}),
}
_NAMES = sorted((name for names in CURRENCIES.values() for name in names), key=lambda name: (-len(name), name))
_CHINESE = "|".join(re.escape(name) for name in _NAMES if not name.isascii() and name not in ("刀", "欧"))
_LATIN = "|".join(re.escape(name) for name in _NAMES if name.isascii() and name.isalpha())
# 三元催化器, 单元, 元旦: 元 that is no money. 块, 刀 and 欧 have their own checks (LOT, PIECES).
CURRENCY_AFTER = re.compile(
    rf"\s?(?:(?:{_CHINESE})|(?:{_LATIN})(?![A-Za-z])|\$|块钱|元钱|块(?!儿)|元(?![旦宵素气件器年月神祖催乙组色二])"
    rf"|刀(?![片具架头剪叉子])|欧(?!的?电阻)(?={_SUM_ENDS})|個)(?:整|正)?",
    re.I,
)
CURRENCY_BEFORE = re.compile(rf"(?:(?:{_CHINESE})|(?<![A-Za-z])(?:us\$|hk\$|nt\$|{_LATIN})|\$)[:.\s]?$", re.I)

COUNTED = re.compile(
    rf"(?:多|来)?\s?(?:{_MEASURE}|[A-Za-z](?![A-Za-z]*\$)|[*x×/:]\s?\d|[-.]\d|样|定|起(?=[买来用去发做装])|般|下(?![单去限])|直|些|边|共|旦|时|切)",
    re.I,
)
TENTHS_ALONE = re.compile(r"[毛角](?:钱|(?=$|[;以的]))")
TILES = re.compile(r"拼图|积木|瓷砖|地砖")
TOGETHER = re.compile(r"[买下发送来拿带装寄]")
LOT = re.compile(rf"{_DIGIT}+(?:{_MEASURE})")  # 十块五个: pieces, or the price of a lot; no limit either way
PIECES = re.compile(
    r"(?:装|拼图|积木|电池|肥皂|香皂|手工皂|面膜|瓷砖|地砖|砖|布|手表|腕表|表|毛巾|抹布|地垫|泡沫垫|木板|玻璃|屏|硬盘|豆腐|巧克力|饼干|板|牛排|腹肌"
    r"|石头|香薰|滑板|地毯|浴巾)"
)
SMALL_CHANGE = re.compile(
    rf"又?(?:(?P<tenths>{_DIGIT})(?:毛|角|毫)(?:(?P<hundredths>{_DIGIT})(?:分|仙)?(?!{_DIGIT}))?"
    rf"|零?(?P<cents>\d{{1,2}}|{_DIGIT})(?:美分|分(?!钟|期|不|货)|仙|日本钱)"
    rf"|零(?P<after_zero>{_DIGIT})(?!{_DIGIT}|[十百千万])"
    rf"|(?P<half>半)(?![价径年月天个])"
    rf"|(?P<lone>{_DIGIT})(?={_SUM_ENDS}))(?:钱)?"
)
WHOLE_CENTS = re.compile(rf"(?:[{'零一二两三四五六七八九十百'}]{{1,4}}|\d{{1,2}})(?:分|仙)|(?P<half>一?個半)")
FUZZY_AFTER = re.compile(
    r"(?:多(?![功用人层口色款种少久次元])|余|好几|出头|冒头|挂零|来(?=[块元钱的;,。、!?~吧左]|$)|把(?=[块元来的;,。、!?~吧]|$)|开外(?!的))"
    r"(?:来)?"
)
JUST_UNDER = re.compile(r"(?:将近|接近|[^附最远就靠]近|^近|快要?|(?:^|[^最大])小(?=$))$")

FREE_SHIPPING = re.compile("包邮")
CLAUSE_END = re.compile(r"[;。、!?…()\[\]【】「」]|\.(?!\d)")
CLAUSE_TAIL = re.compile(
    r"(?:左右|上下)?(?:那种|包邮|这个数|那个数|就行|就好|就够|可以|好了|行吗|有吗|有没有|吧|的话|的呢|的|滴)?[吗呢啊呀哈嘛呗~]*"
)
ALONE_BEFORE = re.compile(r"(?:^|[那就要给换成看 ]|大概|也就|大约)$")
BUDGET_WORD = re.compile(
    r"(?:预算|价格|价位|价钱|价码|售价|单价|总价|标价|报价|出价|心理价|荷包|钱包|腰包|兜里|口袋|手里|手头|经费|费用|花费|花|钱|掏|压到|降到|加到|提到"
    r"|放宽到|涨到|肉疼线|撑死|卡死|打住|限额|额度|budget|price|spend)[^\d;]{0,8}$",
    re.I,
)
BUDGET_AFTER = re.compile(r"\s?的?(?:预算|价位|价格|价钱|这个[价档]|封顶价)")
_FILL = r"(?:[在是为了就约到:：])?(?:个)?\s?$"
_NOT_OVER = r"(?:不|别|勿|莫)(?:要|能|可|可以|得|想|会|许|准)?(?:再)?(?:超|高|大|多|贵)(?:过|出|于)?"
NOT_BELOW = re.compile(rf"不(?:能|可|要|得)?(?:再)?(?:低|少|小)(?:于|过){_FILL}")
MAX_BEFORE = re.compile(
    rf"(?:{_NOT_OVER}|别过|最多|顶多|至多|最高|最贵|(?:低|小|少)于|不到|不足|控制在|控制到|上限|(?<![\d十百千万块元])(?:封顶|撑死)|卡死|超了|[≤<]=?|限制?在"
    rf"|under|below|within|less than|up to|at most|max|maximum|no more than){_FILL}",
    re.I,
)
MIN_BEFORE = re.compile(
    r"(?:至少|最少|起码|最低|底线|下限|(?:大|多)于|高[于过]|(?<![不别要能可得会])超过|[≥>]=?"
    rf"|at least|over|above|more than|from){_FILL}",
    re.I,
)
MAX_AFTER = re.compile(_MAX_AFTER)
MIN_AFTER = re.compile(_MIN_AFTER)
APPROXIMATE_AFTER = re.compile(_APPROXIMATE_AFTER)
REFUSED = re.compile(
    r"^(?:以[上下]|之[上下]|往[上下]|不[到足])?的?(?:我|咱)?(?:就|都|一律|可|也|统统|通通)*"
    r"(?:不看|不要|免谈|不考虑|不买|别推|算了|别来|别给我看|不行|不收|pass|绕道|不用看|不必|排除)(?=$|[;\s了啊哈哦吧呢~!。])",
    re.I,
)
# 超了500就不买 refuses by itself; a sum in a place like 满300减50 is a shop's offer.
PLACE = re.compile(r"(?:满|立减|减|返|券|第|送价值|积分|尾号|型号|编号)$")
MODEL_BEFORE = re.compile(r"[A-Za-z][-_ ]?$|[\d.][-:/*x×年月]$|\d[米斤码寸]$", re.I)
DIMENSION = re.compile(
    r"(?:身高|体重|腰围|胸围|臀围|脚长|尺码|鞋码|码数|年龄|容量|内存|硬盘|存储|长度|宽度|高度|厚度|深度|直径|口径|尺寸|功率|电压|电量|续航|蓄电|重量|净重"
    r"|面积|距离|里程|像素|分辨率|刷新率|亮度|色温|转速|噪音|焦距|倍数|度数|近视|评分|好评|销量|库存|数量|人数|页数|片数|温度|水温|显卡|处理器|型号|酷睿|锐龙"
    r"|骁龙|苹果|华为|小米|红米|荣耀|度|长|(?<!放)宽|(?<![最提调拔抬])高(?![于过出])|重|胖|深|厚)[^\d;]{0,4}$"
)
WATTS = re.compile(
    r"充电|快充|闪充|功率|瓦|插头|适配器|电源|灯|风筒|吹风|破壁|加热|音箱|氮化镓|电机|马力|热水壶|微波|料理|太阳能|取暖"
)

SAID_BEFORE = re.compile(
    r"(?:刚才?|之前|原来|先前|前面|上次|一开始|早先)我?(?:说|讲|提|定)?[的了好]?(?:预算|价格|价钱|价)?是?$"
)
LIFTED_SUM = re.compile(
    r"(?:的|那|这|个|数|条|线|限制|预算|价格|价|事){0,6}(?:就|算|先|也)?"
    r"(?:当我没(?:说|讲|提)|作废|不算数?了|取消|划掉|翻篇|去掉|不够(?!的))"
)
REVISED = re.compile(
    r"改成|改为|改到|加到|提到|[提调抬拔]高到|涨到|放宽到|放到|降到|调到|压到|换成|不对|说错|应该是|还是|算了"
)

_MONEY = r"(?:预算|价格|价钱|价位|价码|荷包|腰包|钱(?!包)|花费|费用|价)"
_LIMIT = r"(?:限制|上限|封顶|门槛|要求)"
_FINE = r"(?:行|可以|成|没关系|没事|无妨|不要紧|无所谓|不怕|能接受|接受|愿意|乐意|ok|好|认|掏|要|上|端|考虑|都行)"
CLEAR = re.compile(
    rf"(?<!是)(?:不限|不设|不管|别管|不用管|不用考虑|不考虑|不看|不在乎|不在意|不计较|不卡|不用卡|别卡|忽略|取消|去掉|放开|撤掉)(?:了|一下|掉)?{_MONEY}"
    rf"|{_MONEY}(?:那|这|的|事|儿|条|个|块|线|方面|上|数|{_LIMIT}|都|也|可以|已经|先|就|就是|给|全|再|咱|我|一下){{0,6}}"
    rf"(?:不限|不设限|没{_LIMIT}|没有{_LIMIT}|无{_LIMIT}|放开|不卡|取消|不管|不用管|不用卡|不算|去掉|划掉|作废|翻篇|松绑|放?一边|放一放|不考虑|不在乎|撤掉|无上限)"
    rf"|{_MONEY}[^，。,.；;！!？?]{{0,4}}[线条]不要了|(?:预算|{_LIMIT})不要了|(?:前面|之前|刚才|先前)(?:那个|这个|的|说的)?数(?:都|就|全)?(?:作废|不算|取消)"
    rf"|(?<!不)(?<!便宜)贵(?:一?点|一?些|的)?(?:儿|钱)?(?:我|他|她|也|都|照样|还是){{1,3}}{_FINE}"
    rf"|(?:多花|钱多|多出|加|多加|多掏)(?:一?点|一?些|些)?(?:儿|钱)?(?:我|他|她)?(?:也|都){_FINE}"
    rf"|超(?:出|过|一?点|一?些|了)?(?:点|些)?预算(?:一?点|一?些)?(?:我)?(?:也|都){_FINE}"
    rf"|{_MONEY}[^;]{{0,6}}当我没(?:说|讲|提)",
    re.I,
)
