"""Masking of personal data: what must go, what must stay, and that masking is complete and takes linear time."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.data.personal_data import find_personal_data, luhn_valid, mask_personal_data, resident_id_valid


@pytest.mark.parametrize(
    ("text", "masked", "reason"),
    [
        ("打我13812345678", "打我[phone]", "a mobile number"),
        ("１３８１２３４５６７８找我", "[phone]找我", "full-width digits are digits"),
        ("+86 138-1234-5678", "[phone]", "country code and separators"),
        ("座机010-62345678", "座机[phone]", "a landline with its area code"),
        ("400-820-8820", "[phone]", "a service number"),
        ("发我邮箱 li.lei@mail.example.cn 谢谢", "发我邮箱 [mail] 谢谢", "a mail address"),
        ("我的地址是杭州市西湖区文三路188号3栋2单元501室", "我的地址是[address]", "a full address"),
        ("寄到北京市朝阳区望京街8号院3号楼1201，跑鞋两双", "寄到[address]，跑鞋两双", "the request behind it stays"),
        ("放3栋502室门口", "放[address]门口", "building and room alone"),
        ("身份证11010519491231002X", "身份证[id_number]", "an identity number"),
        ("sfz11010519491231002X", "sfz[id_number]", "the same behind letters"),
        ("110105 19491231 0020", "[id_number]", "mistyped or in groups, still personal: the check digit is not asked"),
        ("卡号4111 1111 1111 1111", "卡号[card_number]", "a card number passes its check sum"),
        ("订单号：2024113012345678到哪了", "订单号：[order_number]到哪了", "named as an order"),
        ("订单 A1B2-99887766 查一下", "订单 [order_number] 查一下", "letters and digits, named as an order"),
        ("SF1234567890123到哪了", "[order_number]到哪了", "a parcel number without its name"),
        ("加微信vx13812345678", "加微信vx[phone]", "a number right behind letters"),
        ("加v13812345678", "加v[phone]", "the same behind one letter"),
        ("wx13912345678聊", "wx[phone]聊", "the same in the middle"),
        ("tel13812345678", "tel[phone]", "the same behind a word"),
        ("tel010-62345678", "tel[phone]", "a landline behind a word"),
        ("座机01088886666", "座机[phone]", "a landline without a mark, named as one"),
        ("电话是057188886666，下午打", "电话是[phone]，下午打", "the same of a longer area code"),
        ("QQ123456789", "QQ[account]", "an account, named as one"),
        ("加q 123456789", "加q [account]", "the same as it is typed"),
        ("上海市泰康路210弄3号", "[address]", "弄 behind a number is a lane"),
        ("苏州平江区钮家弄12号", "[address]", "弄 behind a name is one too"),
        ("中山路东段188号", "[address]", "what stands between street and number is no good"),
        ("幸福小区北区3号楼", "[address]", "a building"),
        ("人民路鞋城3号楼501室", "[address]", "a building that is named after goods"),
        ("衣锦街3号", "[address]", "goods in the street's own name"),
        ("公路街8号", "[address]", "a street all the same"),
        ("李雷13812345678，mail a@b.cn", "李雷[phone]，mail [mail]", "two kinds in one message"),
    ],
)
def test_masked(text: str, masked: str, reason: str) -> None:
    assert mask_personal_data(text)[0] == masked, reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("iPhone 15 256G 5000以内", "a model, a size and a sum"),
        ("买个65W的充电器，预算1300到1500", "a range of sums"),
        ("要1200x600的桌子，25,481元以内", "measures, a thousands separator"),
        ("南京路边上那家店的同款", "a street without a house number names a place, not a home"),
        ("花园路3号电池来一板", "size 3 batteries are no house number"),
        ("给我弄双跑鞋42号", "a shoe size; 弄 is a verb"),
        ("帮我弄3号的", "a size; 弄 is a verb"),
        ("帮忙弄个42号的", "a size; 弄 is a verb"),
        ("sku4001234567", "a number of goods is no service number"),
        ("想买广场舞鞋38号的，预算两百", "a shoe size; a dance"),
        ("广场舞扇子3号", "a size; a dance"),
        ("逛街穿的鞋37号", "a shoe size; a pastime"),
        ("走路穿39号", "a size; a pastime"),
        ("走路鞋39号", "a shoe size"),
        ("公路车头盔2号", "a helmet size"),
        ("花园剪刀5号", "a size of shears"),
        ("街头篮球7号", "a size of balls"),
        ("村里穿的裤子2号", "a size of trousers"),
        ("电话手表01288", "too short for a landline"),
        ("QQ糖100000块", "sweets, and a sum"),
        ("qq 50000元", "a sum"),
        ("订单还没到，1500块呢", "a sum behind the word for order"),
        ("4111111111111112", "sixteen digits that fail the check sum are masked as an order, not as a card"),
        ("手机号后四位5678", "four digits identify nobody"),
    ],
)
def test_left_alone(text: str, reason: str) -> None:
    assert "card_number" not in mask_personal_data(text)[1], reason
    if len(text) != 16:
        assert mask_personal_data(text) == (text, ()), reason


def test_check_sums() -> None:
    assert luhn_valid("4111111111111111") and not luhn_valid("4111111111111112")
    assert resident_id_valid("11010519491231002X") and not resident_id_valid("11010519491331002X")


@settings(deadline=None)  # a busy machine is no failure
@given(st.text(alphabet="买跑鞋路号栋订单a@.c- 0123456789，", max_size=60), st.sampled_from(["13812345678", "a@b.cn"]))
def test_a_number_set_off_by_commas_never_survives(around: str, secret: str) -> None:
    masked, kinds = mask_personal_data(f"{around}，{secret}，{around}")
    assert secret not in masked.replace(around, "") and kinds


@settings(deadline=None)  # a busy machine is no failure
@given(st.text(max_size=200))
def test_spans_are_ordered_and_disjoint(text: str) -> None:
    found = find_personal_data(text)
    assert all(one.end <= two.start for one, two in zip(found, found[1:], strict=False))
    assert all(0 <= one.start < one.end <= len(text) for one in found)


@pytest.mark.parametrize("piece", ["花园", "1", "a.", "1 ", "订单", "路1号", "@a.", "路鞋1", "弄", "座机01", "qq1"])
def test_time_is_linear(piece: str) -> None:
    def seconds(times: int) -> float:
        start = time.process_time()
        find_personal_data(piece * times)
        return time.process_time() - start

    seconds(100)
    assert seconds(8000) < 16 * seconds(1000) + 0.5  # quadratic would be 64 times as long
