"""Golden fields by rule: what a turn says of money, whether it excludes something, which domains a word proves."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from reward.budget import BudgetReading, parse_budget
from reward.planner_reward import DOMAINS, RESERVED_DOMAIN

# 尽量别, 最好不是, 不太喜欢: wishes. They are taken out of the text before the hard words are looked for.
# The 能 of 智能, 功能, 太阳能 is none, nor the 太 of 太阳能, 太空棉.
_SOFT = re.compile(
    r"(?:尽量|最好|(?<![智功性节全技阳万储])能|可以的话|如果可以|要是能|希望)(?:就|还是|都)?(?:别|不要|不[带含]|不是|不用|避开|躲开|没有|少)[^，。；,;!！?？]{0,8}"
    r"|别太|不要太(?![阳空妃师])|不能太|别老太|不(?:太|怎么|大|是很|是特别|那么|算)(?:喜欢|想要|想|爱|感冒|中意|合适|要)|没那么(?:中意|喜欢)"
    r"|能免则免|少来点|不优先|兴趣不大|一般般|有点(?:看)?腻"
)
_SUM = r"[\d一二两三四五六七八九十百千万.kw块元]"
_PARTS = re.compile(r"[，。,;；!！?？\n]")  # 、 joins what is refused together: 口红、香水都不要
_WITHIN = r"[^，。,;；/／、|！!？?\s]"  # the same clause
# 超过300的不要 refuses a price and ends there; 不超过300绝对不要磁铁 goes on with what is excluded.
_REFUSED = (
    r"(?:不要|不买|不看|不考虑|免谈)"
    r"(?=[了啊哈哦吧呢的呀哇嘛]*(?:$|[，。,;；/／、|！!？?～~…\s])|给我|推|发|看|考虑)"
)
# Said about something other than the goods: no exclusion.
_IDLE = re.compile(
    r"要不要|不要紧(?![身急绷凑致实口腿])|别急|别忘|别客气|别担心|别的|特别|区别|[识鉴甄判]别|类别|级别|性别|个别|分别|别致|别墅|别人|别处|告别|辨别|别针|有没有|没关系|没问题|没事"
    rf"|不要超(?=\s?(?:[过出了支预价上我这那]|{_SUM}|$|[，。]))|别超|不要高于|别高于|不要太贵|(?:谢谢|不用)不用了?|不用了谢|^(?:那|我)?不要[了啦](?=$|[，。谢])|缺一不可|不买了|不看了|先不看"
    rf"|那个不买|(?:超过?了?|高于|低于|多于|少于){_SUM}+{_WITHIN}{{0,4}}{_REFUSED}"
    rf"|{_SUM}(?:以[上下]|往[上下]|之[上下]){_WITHIN}{{0,3}}{_REFUSED}"
    r"|(?:价格|预算|价钱|价码|限制|上限|线)[^，。,;；]{0,4}(?:不要了|去掉|取消|划掉|不算|不管|不看)|不看(?:价格|价钱|预算)|不管(?:预算|价格)"
    r"|不考虑(?:价格|预算)|超了[^，。,;；]{0,6}不买|别让|别把|别再(?:吵|响)"
    # 没有就算了 gives up; 没有口袋的就算了 excludes
    r"|(?:没有?(?:合适的?|满意的?|现货|货|同款)?|[买找搜]不[到着]|[太超]贵|超预算)(?:的话|了|的)?(?:那|也|我|就)*算了吧?"
    # 买不买, 能不能: a question
    r"|(?P<asked>[一-龥]{1,2})不(?P=asked)"
    # 非它不可, 没有它不行, 不买就没了, 用不着太大: what must be, or need not be
    r"|非(?!常)[^，。,;；!！?？\s的]{1,8}不(?:行|可)|没有?[^，。,;；!！?？\s的]{1,8}不(?:行|可)|不[买要]不行|未尝不可|^(?:那|这)?不行"
    r"|不买(?:就|也|可惜|亏|后悔)|用不着(?:太|很|多|那么|这么|买|急)|不要(?:求|钱(?![包夹币]))|不排除|别看(?:他|她|它|我|便宜)"
    r"|[无没]法拒绝|难以拒绝|不能拒绝|不接受(?:反驳|讲价|议价)|绝对?不(?:亏|吃亏|后悔|贵|便宜)|(?<!觉)得受不了|(?:运|邮)费[^，。,;；]{0,3}免了"
    r"|(?:不要|别)[买拿发送弄选给搞]错|不考虑(?:钱|价钱|品牌|牌子|款式|颜色|材质|尺寸)(?=$|[，。,;；!！?？\s])"
    # 除了跑鞋还要袜子, 除了好看，也要耐穿 add something; 除了黑色都行, 除了黑色还有哪些 exclude
    rf"|除了(?=(?:(?!都|其[他它余]|别的|全部?|任何|什么){_WITHIN}){{1,12}}[，,]?(?:(?!都|其[他它余]|别的|不|别){_WITHIN}){{0,4}}"
    r"(?:还(?!有(?:什么|哪|啥|别|其|没|吗))|也(?!不|别|没)|再))"
    # what the thing itself does: 去掉异味的, 过滤掉杂质的
    r"|(?:去|过滤|滤|排除)掉?(?:异味|杂质|污渍|油污|油渍|水垢|茶垢|毛球|浮毛|死皮|角质|黑头|甲醛|余氯|泥沙|细菌|病毒|重金属|蓝光|油烟|粉尘|花粉)"
    rf"|{_SUM}打住吧"
    # 不带盖也行 allows, 可带可不带 leaves open, 不含税 speaks of the price
    rf"|不[带含]{_WITHIN}{{0,6}}也(?:行|可|没|无|好|ok)|可不带|不含(?:税|[运邮]费)"
    # 防水那条去掉吧: a wish taken back
    r"|(?:[那这]一?条|要求|条件|限制)(?:就|先|也|都|可以|给我|帮我)*(?:去掉|划掉|取消|免了|剔除|算了吧?|不要了)"
)
# A word of one or two characters is looked at with its neighbours: 不沾锅, 剔牙线, 挑剔, 避免了, 禁忌 exclude nothing.
_HARD = re.compile(
    r"(?:不要|不想要|别要|别给|别来|别推|别拿|别是|别带|别发|别塞|别弄|别买|别选|别整|别上|别看|别放|别老|别加|不能有|不能是|不能带|不能含|不可以有|不得有|不许有"
    r"|不考虑|不买|拒绝|排除(?!法|故障|万难)|除了|除外|去掉|(?<!挑)剔(?![牙透骨肉毛])|过滤掉|筛掉|划走|绕道|(?<![避难未幸赦])免了|谢绝|坚决不|绝不|绝对不|死活不|一律不|统统不|一概不"
    r"|不碰|不吃(?![力亏灰油电粉妆])|不沾(?![锅水油毛灰尘手杯底煎炒平涂烤泥染身皮粉的]|$|[\s，。,;；!！?？])|不收(?![费钱腰口缩邮运边])"
    r"|(?:不行|不可)(?=$|[\s，。,;；!！啊呀哈的])|就算了|算了吧|就退货|的不[喝吃用穿戴入]|不准(?=[有带含是用给推买放加发要])"
    r"|千万别|可不要|我不要|用不着|受不了|不含(?!糊)|不带(?![走回去来货路吗么吧])|打住吧|(?<![顾禁猜妒嫉无])忌(?![廉惮讳司日]|口的)|毙|不接受|不入(?![流味眼耳门睡])"
    r"|(?<!诚)勿(?:扰(?![模牌挂])|推|发)"
    # 除黑色外都行 excludes, 除黑色外还要白色 adds
    rf"|除(?![了去此□]){_WITHIN}{{1,8}}外[，,]?(?:的{_WITHIN}{{0,4}})?(?:都|其[他它余]|别的|全|任何|什么|哪)"
    r"|(?<![a-z])pass(?![a-z])|(?<![a-z])no\s+(?!\d|need\b|more than|problem|rush|hurry|idea))",
    re.I,
)

# A word that proves a domain, whatever else the turn says. Only compounds that name goods of one kind.
DOMAIN_EVIDENCE: tuple[tuple[str, str], ...] = (
    ("apparel", r"连衣裙|衬衫|卫衣|羽绒服|冲锋衣|牛仔裤|T恤|毛衣|睡衣|内衣|袜子|外套(?!壳)|半身裙"),
    ("footwear", r"跑鞋|跑步鞋|运动鞋|球鞋|皮鞋|凉鞋|拖鞋|靴子|登山靴|高跟鞋|帆布鞋|板鞋"),
    ("bags", r"双肩包|书包(?!架)|手提包|斜挎包|行李箱|拉杆箱|钱包|公文包|旅行包"),
    ("jewelry_watches", r"项链|耳环|耳坠|戒指|手镯|手表(?!带|盒)|腕表"),
    ("electronics", r"耳机(?!套|包)|音箱|相机(?!包)|行车记录仪|投影仪|电视机|游戏机"),
    ("computers", r"笔记本电脑|显示器(?!支架)|机械键盘|键盘(?!膜)|鼠标(?!垫)|固态硬盘|路由器|打印机|显卡"),
    ("phones", r"手机壳|手机膜|充电宝|智能手机|手机支架|手机套"),
    ("home_kitchen", r"平底锅|炒锅|菜刀|保温杯|电饭煲|空气炸锅|餐具|四件套|枕头|被子|茶具"),
    ("furniture", r"沙发(?!套|垫)|书架|衣柜|办公椅|餐桌(?!布)|床垫|茶几|书桌"),
    ("garden", r"花盆|浇水管|花园水管|割草机|园艺剪|花种|肥料"),
    ("beauty", r"口红|面膜|粉底|洗面奶|香水|护肤|眼霜|防晒霜|睫毛膏"),
    ("health", r"血压计|血压仪|体温计|维生素|血糖仪|轮椅|护膝"),
    ("food", r"坚果|零食|咖啡豆|茶叶|巧克力|饼干|蛋白棒|橄榄油"),
    ("sports", r"瑜伽垫|跑步机|哑铃|帐篷|睡袋|羽毛球拍|登山杖|自行车头盔"),
    ("toys_baby", r"婴儿推车|积木|奶瓶|纸尿裤|尿不湿|毛绒玩具|安全座椅|拼图"),
    ("books_media", r"小说|绘本|教材|练习册|黑胶唱片|漫画书"),
    ("auto", r"汽车脚垫|车载|雨刷|机油|轮胎|行车记录仪"),
    ("pet", r"猫砂|狗粮|猫粮|猫玩具|猫抓板|狗窝|宠物|牵引绳"),
    ("office", r"中性笔|订书机|文件夹|办公椅|碎纸机|便利贴"),
    ("tools", r"电钻|螺丝刀|扳手|电锯|工具箱|卷尺"),
)
_EVIDENCE = tuple((domain, re.compile(pattern)) for domain, pattern in DOMAIN_EVIDENCE)
_unknown = {domain for domain, _ in DOMAIN_EVIDENCE} - (set(DOMAINS) - {RESERVED_DOMAIN})
if _unknown:  # a domain renamed in planner_reward.py and not here
    raise ValueError(f"DOMAIN_EVIDENCE names {sorted(_unknown)}, which planner_reward.DOMAINS does not allow")


def expects_exclusion(text: str) -> bool:
    """Whether the turn states a hard exclusion (不要, 别给我); a wish (尽量别, 不太喜欢) is none.

    >>> expects_exclusion("不要黑色的"), expects_exclusion("尽量别黑色"), expects_exclusion("价格不要超过三百")
    (True, False, False)
    """
    return _HARD.search(_IDLE.sub("□", _SOFT.sub("□", text))) is not None


def with_proven_domains(domains: Sequence[str], text: str) -> list[str]:
    """`domains` and those that a word of `text` proves, which are added at the end; none is ever removed.

    A sentence part with a hard exclusion proves nothing: what it names may be what is refused (口红就不要了).
    """
    said = "，".join(part for part in _PARTS.split(text) if not expects_exclusion(part))
    proven = [domain for domain, pattern in _EVIDENCE if pattern.search(said)]
    return list(dict.fromkeys([*domains, *proven]))


def budget_fields(text: str) -> dict[str, Any]:
    """The three budget keys of a golden record."""
    reading: BudgetReading = parse_budget(text)
    return {
        "budget_amount": reading.amount,
        "clear_budget": reading.clear and not reading.uncertain,
        "budget_uncertain": reading.uncertain,
    }


def rule_fields(text: str) -> dict[str, Any]:
    """Everything a turn's words alone decide: the budget keys and `exclude_expected`."""
    return {**budget_fields(text), "exclude_expected": expects_exclusion(text)}


def differing(first: Mapping[str, Any], second: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """The keys whose values differ. Where both say that the budget is uncertain, its amount is not compared."""
    uncertain = bool(first.get("budget_uncertain")) and bool(second.get("budget_uncertain"))
    skipped = {"budget_amount", "clear_budget"} if uncertain else set()
    return [key for key in keys if key not in skipped and (first.get(key) or None) != (second.get(key) or None)]
