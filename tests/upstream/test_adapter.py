"""The adapter's flags against the real trainer's sources."""

from leonardo.engine.upstream.own import OWN
from leonardo.engine.upstream.flags import command_line, known_flags
from leonardo.settings import LAUNCH
from leonardo.site import load_site
from leonardo.stages.definition import load_model, load_stage


def test_every_flag_of_the_shipped_files_and_of_the_adapter_is_one_of_the_trainers(upstream):
    known = known_flags(upstream.path)
    assert OWN <= known
    for stage in map(load_stage, (LAUNCH / "stages").glob("*.yaml")):
        for site in map(load_site, (LAUNCH / "sites").glob("*.yaml")):
            assert command_line({**site.upstream.flags, **load_model(stage.model).upstream, **stage.upstream}, known)


def test_values_that_the_trainer_only_chooses_from_are_read(upstream):
    """A few by name, lest the reading off finds fields that are no flags."""
    assert {"dppo_divergence_threshold", "vllm_num_engines", "tool_parser_type", "pool_size", "seed"} <= known_flags(
        upstream.path
    )
