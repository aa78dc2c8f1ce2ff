"""The devices hloom plans for: hloom/targets/."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import jax
import pytest
from jax.extend.mlir import ir

from hloom import targets
from hloom._jax.devices import DeviceFacts
from hloom._jax.local_devices import described_to_xla
from hloom._jax.modules import make_context
from hloom.passes.analysis.cost import seconds
from hloom.passes.framework.target import CPU_SPEED, Speed, Target
from hloom.targets import deviceless, devices, gpu_speed
from hloom_tools.describing import description_of

FOLDER = Path(targets.__file__).parent
FIGURES = FOLDER / "h100_sxm.toml"
GPUS = (
    "a100_sxm_40", "a100_sxm_80", "b200", "h100_pcie", "h100_sxm", "h200", "l40s", "rtx_4090"
)  # fmt: skip
TPUS = ("v4", "v5e", "v5p", "v6e")


def test_the_known_targets() -> None:
    assert targets.names() == ("a100_sxm_40", "a100_sxm_80", "b200", "cpu", *GPUS[3:], *TPUS)
    assert targets.load("cpu") == Target("cpu", "cpu", None)
    h100 = targets.load("h100_sxm")
    assert (h100.platform, h100.name) == ("cuda", "h100_sxm")
    assert (h100.memory_bytes, h100.usable_bytes) == (84_942_979_072, 63_707_234_304)


def test_the_known_tpus() -> None:
    # https://cloud.google.com/tpu/docs/v4, v5e, v5p and v6e.
    sheet = {
        "v4": (32, 275e12, 1200e9),
        "v5e": (16, 197e12, 819e9),
        "v5p": (96, 459e12, 2765e9),
        "v6e": (32, 918e12, 1640e9),
    }
    for name, (gibi_bytes, half_flops_per_s, bytes_per_s) in sheet.items():
        target = targets.load(name)
        assert (target.platform, target.name) == ("tpu", name)
        assert target.memory_bytes == gibi_bytes * 2**30
        assert 0.96 * target.memory_bytes < target.usable_bytes < target.memory_bytes
        assert target.speed.matrix_rate(16) == half_flops_per_s
        # A v4 has no faster products of 8 bits.
        eighth = half_flops_per_s * (1 if name == "v4" else 2)
        assert target.speed.matrix_rate(8) == pytest.approx(eighth, rel=0.01)
        assert target.speed.bytes_per_s == bytes_per_s
        assert target.speed.vector_flops_per_s < target.speed.matrix_rate(16) / 10


@pytest.mark.parametrize(
    ("name", "gibi_bytes", "half_flops_per_s", "bytes_per_s"),
    [
        ("a100_sxm_40", 40, 312e12, 1555e9),
        ("a100_sxm_80", 80, 312e12, 2039e9),
        ("h100_pcie", 80, 756e12, 2000e9),
        ("h200", 141, 989e12, 4800e9),
        ("b200", 180, 2250e12, 8000e9),
        ("l40s", 48, 362e12, 864e9),
        ("rtx_4090", 24, 165.2e12, 1008e9),
    ],
)
def test_the_known_gpus(
    name: str, gibi_bytes: int, half_flops_per_s: float, bytes_per_s: float
) -> None:
    """Beside NVIDIA's datasheets, whose gigabytes are sometimes 2**30 bytes; all dense."""
    target = targets.load(name)
    assert (target.platform, target.name) == ("cuda", name)
    assert 0.92 * gibi_bytes * 2**30 < target.memory_bytes < gibi_bytes * 2**30
    assert target.usable_bytes == target.memory_bytes * 75 // 100
    # Boost clocks of datasheets differ from what the devices tell.
    assert target.speed.matrix_rate(16) == pytest.approx(half_flops_per_s, rel=0.1)
    assert target.speed.bytes_per_s == pytest.approx(bytes_per_s, rel=0.05)


def test_every_file_names_the_source_of_its_figures() -> None:
    for name in (*GPUS, *TPUS):
        assert len(deviceless.source(name)) > 40, name
    assert "https://cloud.google.com/tpu/docs/v4" in deviceless.source("v4")
    assert deviceless.source("cpu") == ""


def test_why_a_step_may_take_so_much() -> None:
    reason = targets.limit_reason
    assert reason(targets.load("h100_sxm")).startswith(
        "59.3 GiB are 75 % of its 79.1 GiB, what JAX takes by default: XLA_PYTHON_CLIENT_MEM_"
    )
    assert "where v5e's compiler refuses a step" in reason(targets.load("v5e"))
    assert "80 % of its 10 B" in reason(Target(memory_bytes=10, usable_bytes=8))
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" in reason(Target("cuda", "a", 8, 8))
    assert "the device gives out" in reason(Target("tpu", "a", 8, 8))
    assert reason(Target()) == ""


@pytest.mark.parametrize(
    ("variable", "share", "percent"),
    [
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9", 90),
        ("XLA_CLIENT_MEM_FRACTION", ".5", 50),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", "1.5", 100),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", "much", 75),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", "-1", 75),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", "nan", 75),
    ],
)
def test_a_gpu_that_is_not_here_has_the_share_that_jax_would_take(
    monkeypatch: pytest.MonkeyPatch, variable: str, share: str, percent: int
) -> None:
    monkeypatch.setenv(variable, share)
    found = targets.load("h100_sxm")
    assert found.usable_bytes == found.memory_bytes * percent // 100
    if percent == 90:
        assert "90 % of its 79.1 GiB, as it is set" in targets.limit_reason(found)


def test_every_description_is_read() -> None:
    for name in targets.names():
        assert targets.load(name).name == name


@pytest.mark.parametrize("ending", ["txtpb", "toml"])
def test_a_path_is_read_like_a_name(tmp_path: Path, ending: str) -> None:
    (tmp_path / "mine.txtpb").write_text(deviceless.text("h100_sxm"))
    (tmp_path / "mine.toml").write_text(FIGURES.read_text())
    found = targets.load(f"{tmp_path}/mine.{ending}")
    assert found == dataclasses.replace(targets.load("h100_sxm"), name="mine")


@pytest.mark.parametrize("name", GPUS)
def test_the_figures_are_those_of_the_description(name: str) -> None:
    text = deviceless.text(name)
    figures = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    for field, key in (
        ("device_memory_size", "memory_bytes"),
        ("core_count", "core_count"),
        ("memory_bandwidth", "bytes_per_s"),
        ("major", "compute_capability"),
    ):
        found = re.search(rf"\b{field}: (\d+)", text)
        assert found is not None
        value = figures[key]
        assert int(found[1]) == (value[0] if isinstance(value, list) else value)
    minor = re.search(r"\bminor: (\d+) feature", text)
    assert figures["compute_capability"][1] == (int(minor[1]) if minor else 0)
    assert f"clock_rate_ghz: {figures['clock_hz'] / 1e9:g}\n" in text
    [kind] = targets.device_kinds(name)
    assert f'device_description_str: "{kind}"' in text


def test_a_description_without_figures_is_told(tmp_path: Path) -> None:
    file = tmp_path / "mine.txtpb"
    file.write_text(deviceless.text("h100_sxm"))
    with pytest.raises(targets.TargetError) as caught:
        targets.load(str(file))
    assert str(caught.value) == (
        f"{file}: mine.toml is not beside it, which has the figures that hloom plans with. Write "
        "one, with hloom/targets/h100_sxm.toml for an example."
    )


@pytest.mark.parametrize("read", [targets.load, deviceless.text])
def test_an_unknown_name_is_told_the_close_one_or_the_known_ones(read: object) -> None:
    assert callable(read)
    with pytest.raises(targets.TargetError) as caught:
        read("mine")
    assert str(caught.value) == (
        "unknown target 'mine'. Targets: a100_sxm_40, a100_sxm_80, b200, cpu, h100_pcie, "
        "h100_sxm, h200, l40s, rtx_4090, v4, v5e, v5p, v6e. A path of a description works too, "
        "such as ./mine.toml"
    )
    with pytest.raises(targets.TargetError, match=r"'h100_smx'\. Did you mean 'h100_sxm'\?$"):
        read("h100_smx")


def test_the_cpu_has_no_description() -> None:
    with pytest.raises(targets.TargetError, match="XLA takes the host as it is"):
        deviceless.text("cpu")


def test_a_tpu_has_no_description_but_topologies() -> None:
    with pytest.raises(targets.TargetError, match="XLA knows it by its topologies"):
        deviceless.text("v5p")
    assert deviceless.topology("v5p", 1) == deviceless.topology("v5p", 4) == "v5p:2x2x1"
    assert deviceless.topology("v5p", 5) == "v5p:2x2x2"
    assert deviceless.topology("v5e", 9) == "v5e:4x4"
    with pytest.raises(targets.TargetError, match="at most 64 devices here, not 65"):
        deviceless.topology("v5p", 65)
    for name in ("cpu", "h100_sxm"):
        with pytest.raises(targets.TargetError, match=f"'{name}' has no topologies"):
            deviceless.topology(name, 1)


def test_platforms_and_kinds_of_devices() -> None:
    assert {deviceless.described_platform(name) for name in GPUS} == {"cuda"}
    assert {deviceless.described_platform(name) for name in TPUS} == {"tpu"}
    assert deviceless.described_platform("cpu") == "cpu"
    assert targets.device_kinds("v5p") == ("TPU v5", "TPU v5p")
    with pytest.raises(targets.TargetError, match="XLA takes the host as it is"):
        targets.device_kinds("cpu")


GPU = 'platform = "cuda"\ndevice_kind = "GPU"\nmemory_bytes = 8\n'


def test_figures_may_be_few(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(GPU)
    target = targets.load(f"{tmp_path}/a.toml")
    assert (target.platform, target.name, target.memory_bytes) == ("cuda", "a", 8)
    assert (target.speed, target.compute_capability) == (Speed(), None)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('device_kind = "a"', "platform is a text, got nothing"),
        (GPU.replace("8", "0"), "memory_bytes is a positive whole number, got 0"),
        (GPU.replace("8", "1.5"), "memory_bytes is a positive whole number, got 1.5"),
        (GPU + "core_count = true", "core_count is a positive whole number, got True"),
        (GPU + "compute_capability = 9", "compute_capability is [major, minor], got 9"),
        (GPU + "clock_hz = -1.0", "clock_hz is a positive number, got -1.0"),
        (GPU + "clock_rate = 1.0", "clock_rate is no figure."),
        (GPU + "usable_bytes = 9", "usable_bytes is at most memory_bytes, 8, got 9"),
        (GPU + "topologies = []", "topologies is a list of texts, got []"),
        (GPU.replace('"GPU"', "[1]"), "device_kind is a text or a list of texts, got [1]"),
        (
            GPU + "matrix_flops_per_s = { a = 1 }",
            "matrix_flops_per_s is a table of positive numbers by bits, got {'a': 1}",
        ),
        ("a b", "not a file of TOML: "),
    ],
)
def test_figures_without_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_text(content)
    with pytest.raises(targets.TargetError) as caught:
        targets.load("./a.toml")
    assert str(caught.value).startswith(f"a.toml: {said}")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(targets.TargetError) as caught:
        targets.load(f"{tmp_path}/no.txtpb")
    assert str(caught.value) == f"{tmp_path}/no.txtpb: No such file or directory"
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(targets.TargetError, match=r"binary\.toml: not a file of TOML: "):
        targets.load(f"{tmp_path}/binary.toml")


# Speed.


def test_the_h100s_speed_is_near_its_data_sheet() -> None:
    # https://www.nvidia.com/en-us/data-center/h100/: dense, of the SXM part.
    sheet = {8: 1979e12, 16: 989e12, 32: 495e12, 64: 67e12}
    for speed in (targets.load("h100_sxm").speed, gpu_speed.of_gpu((9, 0), 132)):
        assert dict(speed.matrix_flops_per_s) == pytest.approx(sheet, rel=0.1)
        assert speed.vector_flops_per_s == pytest.approx(67e12, rel=0.1)
        assert speed.bytes_per_s == pytest.approx(3.35e12, rel=0.01)


@pytest.mark.parametrize(
    ("capability", "cores", "half_flops_per_s", "bytes_per_s"),
    [
        ((7, 0), 80, 125e12, 900e9),
        ((8, 0), 108, 312e12, 2039e9),
        ((8, 6), 84, 149.7e12, 696e9),
        ((8, 9), 142, 362e12, 864e9),
        ((10, 0), 148, 2250e12, 8e12),
        ((12, 0), 170, 419e12, 1792e9),
    ],
)
def test_other_gpus_are_near_their_data_sheets(
    capability: tuple[int, int], cores: int, half_flops_per_s: float, bytes_per_s: float
) -> None:
    speed = gpu_speed.of_gpu(capability, cores)
    assert speed.matrix_rate(16) == pytest.approx(half_flops_per_s, rel=0.05)
    assert speed.bytes_per_s == pytest.approx(bytes_per_s, rel=0.01)


def test_a_gpu_of_tomorrow_is_like_the_newest_of_today() -> None:
    assert gpu_speed.of_gpu((99, 0), 100) == gpu_speed.of_gpu((12, 0), 100)
    assert gpu_speed.of_gpu((10, 3), 100) == gpu_speed.of_gpu((10, 0), 100)
    assert gpu_speed.of_gpu((5, 0), 100) == gpu_speed.of_gpu((7, 0), 100)


def test_a_tpu_multiplies_float32_in_passes_of_16_bits() -> None:
    text = """
    func.func @main(%x: tensor<256x256xf32>) -> tensor<256x256xf32> {{
      %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]{precision}
        : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
      return %0 : tensor<256x256xf32>
    }}"""
    speed = dataclasses.replace(targets.load("v5p").speed, kernel_s=0, bytes_per_s=1e30)
    flops = 2 * 256**3
    with make_context():
        for precision, passes in (("", 1), ("HIGH", 3), ("HIGHEST", 6)):
            words = f", precision = [{precision}, {precision}]" if precision else ""
            module = ir.Module.parse(text.format(precision=words))
            [product, _] = module.body.operations[0].regions[0].blocks[0].operations
            taken_s = seconds(product.operation, speed)
            assert taken_s == pytest.approx(passes * flops / 459e12, rel=1e-6)


# The devices that JAX compiles for.

H100 = "NVIDIA H100 80GB HBM3"


def test_a_described_device_that_is_not_here() -> None:
    facts = DeviceFacts(H100, (9, 0), 132)
    assert devices.target_of("cuda", [facts]) == targets.load("h100_sxm")


@pytest.mark.parametrize("name", TPUS)
def test_a_tpu_is_known_by_each_name_of_its_kind(name: str) -> None:
    for kind in targets.device_kinds(name):
        assert devices.target_of("tpu", [DeviceFacts(kind)]) == targets.load(name)


def test_a_described_device_that_is_here_tells_its_own_limit() -> None:
    facts = [DeviceFacts(H100, (9, 0), 132, limit_bytes=limit) for limit in (60_000, 50_000)]
    target = devices.target_of("cuda", facts)
    assert (target.name, target.memory_bytes, target.usable_bytes) == ("h100_sxm", 50_000, 50_000)
    assert target.speed == targets.load("h100_sxm").speed


def test_a_device_without_a_description() -> None:
    target = devices.target_of("cuda", [DeviceFacts("NVIDIA A800-SXM4-80GB", (8, 0), 108, 70_000)])
    assert (target.platform, target.name, target.usable_bytes) == ("cuda", "cuda", 70_000)
    assert target.speed == gpu_speed.of_gpu((8, 0), 108)
    unknown = devices.target_of("rocm", [DeviceFacts("gfx942")])
    assert (unknown.platform, unknown.memory_bytes, unknown.usable_bytes) == ("rocm", None, None)
    assert unknown.speed == Speed()


def test_virtual_cpu_devices_share_the_machine() -> None:
    one = devices.target_of("cpu", [DeviceFacts("cpu")])
    four = devices.target_of("cpu", [DeviceFacts("cpu")] * 4)
    assert one.speed == CPU_SPEED
    assert one.usable_bytes is not None
    assert four.memory_bytes == one.memory_bytes // 4
    assert 2**28 < one.usable_bytes < one.memory_bytes


# The device at hand.


@pytest.mark.parametrize("name", ["h100_sxm", "rtx_4090"])
def test_a_gpu_here_is_described_as_the_files_are(name: str, tmp_path: Path) -> None:
    [kind] = targets.device_kinds(name)
    found = description_of("cuda", DeviceFacts(kind, limit_bytes=5), deviceless.text(name))
    (tmp_path / "mine.toml").write_text(found.figures)
    assert found.text == deviceless.text(name)
    mine, known = targets.load(f"{tmp_path}/mine.toml"), targets.load(name)
    assert (mine.platform, mine.memory_bytes) == ("cuda", known.memory_bytes)
    assert mine.compute_capability == known.compute_capability
    assert mine.speed.bytes_per_s == known.speed.bytes_per_s
    assert mine.speed.vector_flops_per_s == known.speed.vector_flops_per_s


def test_devices_that_tell_little_are_described_by_that(tmp_path: Path) -> None:
    found = description_of("tpu", DeviceFacts('TPU "v9"', limit_bytes=2**30), None)
    assert (found.name, found.text) == ("tpu_v9", None)
    (tmp_path / "v9.toml").write_text(found.figures)
    target = targets.load(f"{tmp_path}/v9.toml")
    assert (target.memory_bytes, target.usable_bytes) == (2**30, 2**30)
    with pytest.raises(targets.TargetError, match="does not tell how much memory it has"):
        description_of("rocm", DeviceFacts("gfx942"), None)
    with pytest.raises(targets.TargetError, match="target 'cpu' needs no description"):
        description_of("cpu", DeviceFacts("cpu"), None)


@pytest.mark.h100
@pytest.mark.parametrize("name", GPUS)
def test_xla_compiles_for_each_gpu(name: str) -> None:
    sharding = deviceless.placement(name)
    [device] = sharding.device_set
    assert device.device_kind in targets.device_kinds(name)
    x = jax.ShapeDtypeStruct((64, 64), "bfloat16", sharding=sharding)
    compiled = jax.jit(lambda x: jax.nn.softmax(x @ x)).lower(x).compile()
    assert compiled.memory_analysis().argument_size_in_bytes == 2 * 64 * 64
    assert described_to_xla([device]) is not None


@pytest.mark.tpu
def test_a_v4_is_one_device_of_its_two_cores() -> None:
    assert deviceless.chip_config("v4") == "megacore"
    assert deviceless.chip_config("v5p") is None
    sharding = deviceless.placement("v4")
    x = jax.ShapeDtypeStruct((2**28,), "float32", sharding=sharding)
    # 20 GiB: more than a core of its own has, and less than both.
    compiled = jax.jit(lambda x: [x + number for number in range(20)]).lower(x).compile()
    assert compiled.memory_analysis().output_size_in_bytes >= 20 * 4 * 2**28


def test_the_path_of_a_description_is_taken_as_a_name_is(tmp_path: Path) -> None:
    folder = Path(targets.__file__).parent
    for suffix in (".toml", ".txtpb"):
        (tmp_path / f"mine{suffix}").write_text((folder / f"h100_sxm{suffix}").read_text())
    path = str(tmp_path / "mine.toml")
    assert deviceless.described_platform(path) == "cuda"
    assert deviceless.text(path) == deviceless.text("h100_sxm")
    (tmp_path / "mine.txtpb").unlink()
    with pytest.raises(targets.TargetError, match=r"mine\.txtpb: No such file .* --this` writes"):
        deviceless.text(path)
    tpu = tmp_path / "tpu.toml"
    tpu.write_text((folder / "v5p.toml").read_text())
    assert deviceless.topology(str(tpu), 1) == "v5p:2x2x1"
