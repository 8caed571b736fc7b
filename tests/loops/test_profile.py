"""Kernels by name into buckets, rows that would count twice, and one real profile on the CPU."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from worldloop.core.errors import InvalidInputError
from worldloop.loops.model import WorldModel
from worldloop.loops.profile import OTHER, RULES, Kernel, Profile, is_range, kernels, profile_steady
from worldloop.testing import random_model

NAMES = {
    "attention": [
        "triton_tem_fused_flex_attention_0",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>)",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
    ],
    "matrix product": [
        "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
        "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm90<cutlass::gemm::kernel>>",
        "triton_tem_fused_mm_3",
        "aten::addmm",
        "aten::mm",
    ],
    "convolution": [
        "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float>",
        "triton_tem_fused_convolution_5",
        "aten::mkldnn_convolution",
    ],
    "elementwise": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
        "triton_poi_fused_mul_silu_4",
        "triton_poi_fused_flex_attention_scaled_mm_1",
        "cpp_fused__scaled_dot_product_flash_attention_for_cpu_add_2",
        "aten::silu",
        "aten::cat",
    ],
    "norm, softmax": [
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>",
        "triton_red_fused_native_layer_norm_2",
        "triton_per_fused_add_mul_pow_rsqrt_7",
        "void cunn_SoftMaxForward<4, float>",
        "aten::native_layer_norm",
    ],
    "memory copy": ["Memcpy HtoD (Pageable -> Device)", "Memset (Device)", "aten::copy_", "aten::clone"],
    "recorded graph": ["cudaGraphLaunch"],
    "compiled code": ["## Call CompiledFxGraph f3a7 ##", "Torch-Compiled Region: 0/0"],
    OTHER: ["void at::native::(anonymous namespace)::indexSelectLargeIndex<float>", "aten::arange"],
}


@pytest.mark.parametrize(("bucket", "name"), [(b, name) for b, names in NAMES.items() for name in names])
def test_a_kernel_goes_to_its_bucket(bucket: str, name: str) -> None:
    assert Kernel(name=name, ms=1.0, launches=1.0).bucket == bucket


def test_every_bucket_has_an_example() -> None:
    assert NAMES.keys() == {*(bucket for bucket, _ in RULES), OTHER}


def test_rows_become_kernels_of_one_latent() -> None:
    rows = [
        ("gemm_a", 4000.0, 8),
        ("aten::empty", 0.0, 100),
        ("flex_attention_b", 6000.0, 2),
    ]

    found = kernels(rows, frames=2)

    assert found == (
        Kernel(name="flex_attention_b", ms=3.0, launches=1.0), Kernel(name="gemm_a", ms=2.0, launches=4.0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "spans"),
    [
        ("## Call CompiledFxGraph f3a7 ##", True),
        ("Torch-Compiled Region: 0/0", True),
        ("ProfilerStep*", True),
        ("triton_poi_fused_add_0", False),
        ("void at::native::vectorized_elementwise_kernel<4>", False),
    ],
)
def test_what_spans_other_rows_of_a_device_is_known(name: str, spans: bool) -> None:
    assert is_range(name) == spans


def test_the_table_adds_up() -> None:
    rows = [(f"gemm_{i}", 1000.0, 1) for i in range(30)] + [("softmax", 30_000.0, 5)]
    made = Profile(label="x-3r", frames=1, kernels=kernels(rows, 1), trace=Path("t.json"))
    lines = made.table().splitlines()

    assert made.ms == pytest.approx(60.0)
    assert {name: (k.ms, k.launches) for name, k in made.buckets().items()} == {
        "norm, softmax": (pytest.approx(30.0), 5.0), "matrix product": (pytest.approx(30.0), 30.0),
    }  # fmt: skip
    assert lines[0] == "x-3r: 60.00 ms in kernels a latent frame, mean of 1"
    assert lines[2].split() == ["30.000", "50.0", "5.0", "norm,", "softmax"]
    assert lines[4] == "the 20 longest kernels:"
    assert len(lines) == 5 + 20


def test_a_real_profile_on_the_cpu(
    model: WorldModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "worldloop"):
        made = profile_steady(model, frames=2, label="tiny-3r", folder=tmp_path / "new")

    found = made.buckets()
    passes, layers = 4, model.config.model.num_layers
    kernel = next(k for k in made.kernels if k.name == "aten::_scaled_dot_product_flash_attention_for_cpu")
    assert kernel.launches == passes * layers
    assert found["matrix product"].launches > passes * layers * 4
    assert {"attention", "matrix product", "convolution", "elementwise", "norm, softmax"} <= found.keys()
    assert made.ms > 0
    assert made.trace == tmp_path / "new" / "profile_tiny-3r.json"
    assert json.loads(made.trace.read_text())["traceEvents"]
    assert [r.fields["trace"] for r in caplog.records if r.message == "profile.done"] == [
        "profile_tiny-3r.json"
    ]


@pytest.mark.parametrize("frames", [0, 4])
def test_a_count_that_does_not_fit_is_refused(frames: int, tmp_path: Path) -> None:
    small = random_model(rope_table_len=14)

    with pytest.raises(
        InvalidInputError, match=rf"profile_frames={frames} must be in 1..3 at rope_table_len=14"
    ):
        profile_steady(small, frames=frames, label="x", folder=tmp_path)
    profile_steady(small, frames=3, label="x", folder=tmp_path)
