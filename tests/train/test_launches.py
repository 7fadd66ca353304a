"""Launches of a step on a GPU that is not here."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from bench.cases import CASES, LEANS, Case, rehearsed
from lcrbnn.train import Spec
from tools.launches import Launches, count

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, about itself, where it is told that it has a GPU

CODE = """
triton_poi_a = async_compile.triton('triton_poi_a', '''
triton_meta={'signature': {'in_ptr0': '*bf16', 'out_ptr0': '*fp32', 'xnumel': 'i32'}}
''', device_str='cuda')
def call(args):
    assert_size_stride(primals_1, (1000, 3, 8, 8), (192, 1, 24, 3))
    assert_size_stride(primals_2, (4, 5), (5, 1))
    buf0 = empty_strided_cuda((10, 10), (10, 1), torch.float32)
    triton_poi_a.run(primals_1, buf0, 100, stream=stream0)
    buf1 = torch.ops.lcrbnn.convolve.default(buf0, primals_2, 1)
    buf2 = buf1
    assert_size_stride(buf2, (7, ), (1, ))
    buf3 = buf0; del buf0  # reuse
    triton_poi_a.run(buf2, reinterpret_tensor(buf3, (100, ), (1, ), 0), 100, stream=stream0)
"""


def test_launches_and_bytes_of_code_written_by_hand() -> None:
    first, second, third = 400, 400 + 2 * 20, 2 * 7 + 400  # the data set itself is not read as a whole
    assert count(CODE) == Launches(3, first + second + third)


@pytest.mark.slow  # two steps go through torch's compiler
def test_a_lean_step_has_few_launches() -> None:
    from tools.offline import code_of  # torch warns of itself where it loads its compiler

    found = {}
    for lean in ("wordy", "lean"):
        forward, back = (count(code) for code in code_of(rehearsed(CASES["resnet20"]), LEANS[lean]))
        found[lean] = (forward.number, back.number)
    assert found["lean"][0] < 0.7 * found["wordy"][0]
    assert found["lean"][1] < 0.7 * found["wordy"][1]


@pytest.mark.slow  # so does one here
def test_maps_stay_as_the_convolutions_of_a_gpu_leave_them() -> None:
    from tools.offline import code_of

    forward, _ = code_of(replace(CASES["resnet18"], data="synthetic-8"), LEANS["lean"])
    size = r"assert_size_stride\(\w+, \([\d, ]*\), \(([\d, ]*)\)"
    maps = re.findall(rf"extern_kernels\.convolution\(.*\n\s*{size}", forward)
    assert len(maps) == 15  # the others are the package's own
    assert all(strides.split(", ")[1] == "1" for strides in maps)


class Siman(Case):
    """A case of a method that sorts."""

    def spec(self, teacher: str = "", seed: int = 0) -> Spec:
        return super().spec(teacher, seed).but(method="siman")


@pytest.mark.slow  # and one here
def test_a_sort_can_be_combined_with_other_kernels() -> None:
    from tools.offline import code_of

    forward, _ = code_of(Siman("resnet8-double", data="synthetic-8"), LEANS["lean"])
    assert forward.count("torch.ops.lcrbnn.ranked.default(") == 6  # once a binary layer
