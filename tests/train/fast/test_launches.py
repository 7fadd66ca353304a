"""The number of launches of a step for a GPU, counted on a machine without one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from bench.training.gpu_cases import CASES, FUSION_OPTIONS, Case, shrink_case
from lcrbnn.train.setup.spec import TrainSpec
from tools.count_launches import LaunchCount, count_launches

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns when it compiles for a GPU that does not exist

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


def test_launches_and_bytes_of_handwritten_code_are_counted() -> None:
    first, second, third = (
        400,
        400 + 2 * 20,
        2 * 7 + 400,
    )  # the data set is not counted, because a step reads a part of it
    assert count_launches(CODE) == LaunchCount(3, first + second + third)


@pytest.mark.slow  # compiles two steps
def test_a_fused_step_has_few_launches() -> None:
    from tools.offline_compile import generate_code

    launches = {}
    for fusion_name in ("wordy", "lean"):
        forward, back = (
            count_launches(code) for code in generate_code(shrink_case(CASES["resnet20"]), FUSION_OPTIONS[fusion_name])
        )
        launches[fusion_name] = (forward.num_launches, back.num_launches)
    assert launches["lean"][0] < 0.7 * launches["wordy"][0]
    assert launches["lean"][1] < 0.7 * launches["wordy"][1]


@pytest.mark.slow  # compiles one step
def test_activations_stay_channels_last() -> None:
    from tools.offline_compile import generate_code

    forward, _ = generate_code(replace(CASES["resnet18"], dataset="synthetic-8"), FUSION_OPTIONS["lean"])
    size = r"assert_size_stride\(\w+, \([\d, ]*\), \(([\d, ]*)\)"
    maps = re.findall(rf"extern_kernels\.convolution\(.*\n\s*{size}", forward)
    assert len(maps) == 15  # the others are the package's own
    assert all(strides.split(", ")[1] == "1" for strides in maps)


class Siman(Case):
    """A case of a method that sorts."""

    def make_spec(self, teacher: str = "", seed: int = 0) -> TrainSpec:
        return super().make_spec(teacher, seed).replace(method="siman")


@pytest.mark.slow  # and one here
def test_a_sort_can_be_combined_with_other_kernels() -> None:
    from tools.offline_compile import generate_code

    forward, _ = generate_code(Siman("resnet8-double", dataset="synthetic-8"), FUSION_OPTIONS["lean"])
    assert forward.count("torch.ops.lcrbnn.ranked.default(") == 6  # once a binary layer
