"""Models of Transformers, named on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardwright as sw
from shardwright.cli import main

pytest.importorskip("transformers")

LLAMA = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
VIT = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
VIT |= {"image_size": 16, "patch_size": 8}


@pytest.mark.parametrize(
    ("kind", "config"), [("LlamaForCausalLM", LLAMA), ("ViTForImageClassification", VIT)]
)
def test_a_model_is_planned_from_its_config(
    kind: str, config: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = f"hf:{kind}:{tmp_path / 'config.json'}"
    sizes = "--batch", "4", "--sequence", "8"
    assert main(["plan", model, "--devices", "2", "--plan", "data", *sizes, "--text"]) == 0
    plan = capsys.readouterr().out
    assert "split b 2" in plan and "aten.cross_entropy_loss.default" in plan


@pytest.mark.parametrize(
    ("kind", "config", "why", "fix"),
    [
        (
            "LlamaForCausalLM",
            {"model_type": "gpt2", "n_layer": 2, "architectures": ["GPT2LMHeadModel"]},
            "its model_type is `gpt2`, that of LlamaForCausalLM is `llama`",
            "name the class that it is for: hf:GPT2LMHeadModel:CONFIG",
        ),
        (
            "LlamaForCausalLM",
            {"model_type": "bert"},
            "its model_type is `bert`, that of LlamaForCausalLM is `llama`",
            "name a class of Transformers that is made from a config of type `bert`",
        ),
        (
            "LlamaForCausalLM",
            LLAMA | {"num_hiden_layers": 2},
            "LlamaConfig has no num_hiden_layers",
            "`num_hiden_layers`: did you mean `num_hidden_layers`?",
        ),
        (
            "GPT2LMHeadModel",
            {"n_layer": 1, "n_embd": 16, "rotary_base": 3},
            "GPT2Config has no rotary_base",
            "name a class of Transformers and the file of its config, such as"
            " hf:LlamaForCausalLM:config.json",
        ),
    ],
)
def test_a_config_of_another_class_is_refused(
    kind: str, config: dict[str, object], why: str, fix: str, tmp_path: Path
) -> None:
    from shardwright.integrations.transformers_models import from_config

    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(sw.RuntimeFault) as refused:
        from_config(f"hf:{kind}:{path}")
    assert (refused.value.code, refused.value.why) == ("SW0770", why)
    assert refused.value.fix is not None and refused.value.fix.replace(str(path), "CONFIG") == fix


def test_a_misspelt_class_gets_a_suggestion() -> None:
    from shardwright.integrations.transformers_models import from_config

    with pytest.raises(sw.RuntimeFault) as refused:
        from_config("hf:LlamaForCasualLM:config.json")
    assert refused.value.fix is not None and "`LlamaForCausalLM`" in refused.value.fix


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    from shardwright.integrations.transformers_models import from_config

    (tmp_path / "config.json").write_text("{")
    for name, words in [
        ("hf:LlamaForCausalLM", "names no model"),
        ("hf:NoSuchModel:config.json", "Transformers has no model NoSuchModel"),
        ("hf:LlamaConfig:config.json", "Transformers has no model LlamaConfig"),
        ("hf:LlamaForCausalLM:/no/such/file", "/no/such/file is no config of LlamaForCausalLM"),
        (f"hf:LlamaForCausalLM:{tmp_path / 'config.json'}", "is no config of LlamaForCausalLM"),
    ]:
        with pytest.raises(sw.RuntimeFault, match=words) as refused:
            from_config(name)
        assert refused.value.code == "SW0770"
