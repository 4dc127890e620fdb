"""Sites, stages and models as data: what ships is whole, and what is wrong is named."""

import json
from pathlib import Path

import pytest

from leonardo.cluster import Cluster, Quality
from leonardo.errors import InputError
from leonardo.jobs.arithmetic import learner_memory, memory_findings, node_findings, shape_findings
from leonardo.jobs.settings import shape_for
from leonardo.settings import LAUNCH
from leonardo.site import load_site
from leonardo.stages.definition import load_model, load_stage
from leonardo.stages.launch import plan_stage
from leonardo.stages.launch_choices import Choices
from tests.jobs.shipped import models


def test_template_is_a_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """The documented template is read, and has every key of a pool."""
    monkeypatch.setenv("WORK", "/w")
    cluster = load_site(LAUNCH / "templates/site.yaml").cluster
    assert cluster is not None and str(cluster.roots.shared) == "/w/tmax-leonardo"
    assert set(cluster.pools["gpu"].model_fields_set) == set(type(cluster.pools["gpu"]).model_fields)
    assert set(cluster.model_fields_set) == set(Cluster.model_fields)


def test_shipped_shapes_fit() -> None:
    """Every shape of every model fits on the nodes of the shipped site, by the arithmetic of the check."""
    site = load_site("leonardo")
    assert site.cluster is not None
    pool, stage = site.cluster.pools["gpu"], load_stage("reproduce")
    seen = 0
    for model in (load_model(path.stem) for path in models()):
        for name, shape in model.shapes.items():
            if model.start == "desk":
                continue
            flags = {**model.upstream, **stage.upstream, **shape.all_flags()}
            choices = Choices(engine="upstream", shape=name)
            asked = plan_stage(stage, model, site, Path("/runs/x"), choices).resources
            found = [*shape_findings(shape, pool, flags), *memory_findings(shape, pool, model.parameters, flags, asked)]
            assert not [*found, *node_findings(asked, pool)], (model.name, name)
            seen += 1
    assert seen >= 4


def test_one_gpu_an_engine_is_too_little_for_27b() -> None:
    """Why the largest model's shape is another: its weights leave a 64 GB GPU no room."""
    model = load_model("qwen36_27b")
    site = load_site("leonardo")
    assert site.cluster is not None
    narrow = model.shapes["A100-64GB"].model_copy(update={"tensor_parallel": 1})
    asked = plan_stage(load_stage("reproduce"), model, site, Path("/runs/x"), Choices(engine="upstream")).resources
    found = list(memory_findings(narrow, site.cluster.pools["gpu"], model.parameters, {}, asked))
    assert [finding.id for finding in found] == ["gpus.memory"]
    assert learner_memory(model.shapes["A100-64GB"], model.parameters) < 45


def test_quality_is_the_first_that_takes_it() -> None:
    """Short and small jobs go to the debug QOS, others to the next; what none takes says what there is."""
    cluster = load_site("leonardo").cluster
    assert cluster is not None
    found = [cluster.quality("gpu", *job).name for job in [(1, 30), (3, 30), (1, 31), (2, 2000), (65, 60)]]
    assert found == ["boost_qos_dbg", "normal", "normal", "boost_qos_lprod", "boost_qos_bprod"]
    with pytest.raises(InputError, match="no QOS takes 4 gpu nodes for 2000 minutes"):
        cluster.quality("gpu", 4, 2000)
    assert cluster.quality("cpu", 1, 30) == Quality(name="dcgp_qos_dbg", pools=("cpu",), most_minutes=30, most_nodes=2)


@pytest.mark.parametrize(
    ("pool", "minutes", "named", "words"),
    [
        (
            "gpu",
            30,
            "nosuch",
            "the site has no QOS nosuch for gpu nodes. There are: boost_qos_dbg: 1 to 2 nodes, 30 min",
        ),
        ("gpu", 60, "boost_qos_dbg", "QOS boost_qos_dbg does not take 1 gpu nodes for 60 minutes"),
        ("cpu", 30, "boost_qos_dbg", "QOS boost_qos_dbg does not take 1 cpu nodes for 30 minutes. There are: dcgp"),
    ],
)
def test_a_named_quality_has_to_take_it(pool: str, minutes: int, named: str, words: str) -> None:
    """As one that is chosen; a site that names none knows nothing of them."""
    site = load_site("leonardo")
    with pytest.raises(InputError, match=words):
        plan_stage(
            load_stage("smoke"), load_model("desk"), site, Path("/r/x"),
            Choices(pool=pool, minutes=minutes, quality=named),
        )  # fmt: skip
    assert site.cluster is not None
    assert site.cluster.quality("gpu", 1, 30, "normal").name == "normal"
    open_to_all = site.cluster.model_copy(update={"qualities": (Quality(most_minutes=60, most_nodes=1),)})
    assert open_to_all.quality("gpu", 1, 90, named).name == named


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("grace: 300", "grase: 300", "cluster.grase: unknown setting"),
        ("    cores: 64", "    cores: many", "cluster.pools.gpu.cores: "),
        ("partition: gpu", "partition: ''", "cluster.pools.gpu.partition: "),
        ("most_nodes: 2}", "nodes: 2}", "cluster.qualities.0"),
        ("scheduler: slurm", "scheduler: pbs", "cluster.scheduler: "),
        (
            "gres: gpu:a100:{gpus}",
            "gres: gpu:a100:{gpu}",
            "cluster.pools.gpu.gres: 'gpu:a100:{gpu}' cannot be filled in",
        ),
        (
            "gres: gpu:a100:{gpus}",
            "gres: gpu:a100:{gpus",
            "cluster.pools.gpu.gres: 'gpu:a100:{gpus' cannot be filled in",
        ),
        (
            'tmp_gres: ""',
            "tmp_gres: tmpfs:{x}g",
            "cluster.pools.gpu.tmp_gres: 'tmpfs:{x}g' cannot be filled in; the place",
        ),
        ("reserved_cores: 8", "reserved_cores: 64", "cluster.pools.gpu.reserved_cores: 64 of 64 cores leave none"),
        ("gpu_memory: 80", "gpu_memory: -1", "cluster.pools.gpu.gpu_memory: "),
        (
            "memory: 480",
            "memory: 494000",
            "cluster.pools.gpu.memory: 494000 GiB is more than a node has; the unit is GiB",
        ),
        ("tmp: /tmp", "tmp: tmp", "cluster.pools.gpu.tmp: tmp is relative"),
        ("roots: {shared: $WORK", "roots: {shared: work", "cluster.roots.shared: work/tmax-leonardo is relative"),
        ("environment: {NCCL_", "environment: {NCCL ", "cluster.environment: 'NCCL SOCKET_IFNAME' is no name"),
        ("  environment: {OMP_", "  environment: {OMP-", "upstream.environment: 'OMP-NUM_THREADS' is no name"),
        ("set_up: [module load cuda]", "set_up: module load cuda", "cluster.set_up: a list is wanted"),
        (
            "apptainer: {",
            "apptainer: none # {",
            "cluster.apptainer: keys are wanted. Examples are in launch/templates/site",
        ),
        (
            '- {name: "", most_minutes: 1440',
            '- {name: "", most_minutes: 24:00:00',
            "24:00:00 is a number in sixties to YAML. Write a plain number",
        ),
    ],
)
def test_wrong_key_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    """By file and place."""
    text = (LAUNCH / "templates/site.yaml").read_text()
    assert old in text
    path = tmp_path / "site.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_site(path)
    line = 1 + text[: text.index(old)].count("\n")
    assert f"{path}:{line}: {words}" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("pools: [gpu]", "pools: [gpus]", "debug: no pool gpus; there are gpu"),
        ("most_minutes: 1440", "most_minutes: 86400", "86400 is more than 43200, 30 days; the unit is minutes"),
    ],
)
def test_a_wrong_quality_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    """A pool that is not there, and seconds in place of minutes."""
    path = tmp_path / "site.yaml"
    path.write_text((LAUNCH / "templates/site.yaml").read_text().replace(old, new))
    with pytest.raises(InputError, match=rf"site\.yaml:\d+: cluster\.qualities.*: {words}"):
        load_site(path)


def test_the_name_of_another_file_is_refused(tmp_path: Path) -> None:
    """What is kept under a name is that file's; a copy gets a name of its own."""
    path = tmp_path / "mine.yaml"
    path.write_text((LAUNCH / "sites/desk.yaml").read_text())
    with pytest.raises(InputError, match=r"mine\.yaml:2: name is desk, which is launch/sites/desk\.yaml") as caught:
        load_site(path)
    assert "name: mine" in str(caught.value)
    path.write_text(path.read_text().replace("name: desk", "name: here"))
    assert load_site(path).name == "here"


def test_site_without_a_cluster() -> None:
    """A laptop has no queue, and says what to do instead."""
    with pytest.raises(InputError, match=r"site desk has no cluster\. Run the stage here"):
        plan_stage(load_stage("smoke"), load_model("desk"), load_site("desk"), Path("/runs/x"), Choices())


def test_model_without_a_shape() -> None:
    """Names the GPU and the shapes that there are, and what to do."""
    with pytest.raises(InputError, match=r"no shape for H800\. It has none: add one to the model's file"):
        shape_for({}, "H800", "small")
    with pytest.raises(
        InputError, match=r"has no shape for H800\. It has: A100-64GB.* Name one with --shape, or add one"
    ):
        choices = Choices(engine="upstream", shape="H800")
        plan_stage(load_stage("reproduce"), load_model("qwen35_9b"), load_site("leonardo"), Path("/r/x"), choices)


@pytest.mark.parametrize("flag", ["seed", "tool_parser_type", "checkpoint_state_dir"])
def test_a_flag_that_the_launcher_sets_is_refused(flag: str) -> None:
    """As the engine's adapter refuses it: who writes it into a file would believe that it counts."""
    stage = load_stage("reproduce")
    wrong = stage.model_copy(update={"upstream": {**stage.upstream, flag: "mine"}})
    with pytest.raises(InputError, match=f"{flag} is set by the engine adapter"):
        plan_stage(wrong, load_model(stage.model), load_site("leonardo"), Path("/runs/x"), Choices(engine="upstream"))


def test_a_model_with_a_template_of_ours_brings_its_parser_and_its_bounds() -> None:
    """Upstream does not list it: the job's folder holds its entry. An episode's bounds are in the model's tokens."""
    model = load_model("qwen35_2b").model_copy(update={"tool_parser": "", "episode": {"turn_tokens": 77}})
    plan = plan_stage(load_stage("reproduce"), model, load_site("leonardo"), Path("/r/x"), Choices(engine="upstream"))
    words = list(plan.command)
    assert words[words.index("--tool_parser_type") + 1] in json.loads(plan.files["parsers.json"])
    assert words[words.index("--per_turn_max_tokens") + 1] == "77"
    assert plan.environment["LEONARDO_TOOL_PARSERS"] == "/r/x/parsers.json"


def test_a_run_whose_state_is_not_saved_names_no_folder_for_it() -> None:
    """Upstream refuses one."""
    stage = load_stage("reproduce")
    without = stage.model_copy(update={"upstream": {**stage.upstream, "checkpoint_state_freq": -1}})
    choices = Choices(engine="upstream")
    plan = plan_stage(without, load_model(stage.model), load_site("leonardo"), Path("/r/x"), choices)
    assert "--checkpoint_state_dir" not in plan.command
    assert plan.patience == 0  # there is nothing to wait for


@pytest.mark.parametrize(("minutes", "grace", "patience"), [(0, 1800, 1710), (60, 900, 810), (10, 300, 210)])
def test_the_time_to_stop_is_the_stages_but_in_a_short_job(minutes: int, grace: int, patience: int) -> None:
    """And the site's, at least; of it, what the end by force needs is left."""
    choices = Choices(engine="upstream", minutes=minutes)
    stage = load_stage("reproduce")
    plan = plan_stage(stage, load_model(stage.model), load_site("leonardo"), Path("/r/x"), choices)
    assert (plan.grace, plan.patience) == (grace, patience)
