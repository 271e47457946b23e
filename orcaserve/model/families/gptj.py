"""GPT-J: attention and MLP side by side behind one norm; rotary positions in pairs of neighbours."""

from __future__ import annotations

from orcaserve.core.errors import CheckpointError
from orcaserve.model.families.family import Family, Names
from orcaserve.model.families.settings import Settings, head_size
from orcaserve.model.spec import ModelSpec, RopeSpec


def _spec(settings: Settings) -> ModelSpec:
    settings = settings.renamed(hidden_size="n_embd", num_hidden_layers="n_layer", num_attention_heads="n_head")
    hidden, heads = settings.size("hidden_size"), settings.size("num_attention_heads")
    length = settings.renamed(n_positions="max_position_embeddings").size("n_positions", 2048)
    head_dim, turned = head_size(settings, heads), settings.size("rotary_dim", 64)
    if turned % 2 or turned > head_dim:
        raise CheckpointError(f"config: rotary_dim must be even and at most {head_dim}, a head's size")
    return ModelSpec(
        vocab_size=settings.size("vocab_size"),
        context_length=length,
        hidden_size=hidden,
        n_layers=settings.size("num_hidden_layers"),
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=head_dim,
        intermediate_size=settings.size("n_inner", 4 * hidden),
        norm="layer",
        norm_eps=settings.number("layer_norm_epsilon", 1e-5),
        activation=settings.text("activation_function", "gelu_new"),
        gated=False,
        tied=settings.flag("tie_word_embeddings", False),
        rope=RopeSpec(turned, head_dim, length),
        mlp_bias=True,
        parallel=True,
        shared_norm=True,
        head_bias=True,
    )


GPTJ = Family(
    title="GPT-J",
    model_types=("gptj",),
    spec=_spec,
    safetensors=Names(
        embedding="wte",
        positions=None,
        layer="h.{i}.",
        attention_norm="ln_1",
        qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
        interleaved=True,
        out="attn.out_proj",
        mlp_norm="",
        up=("mlp.fc_in",),
        down="mlp.fc_out",
        norm="ln_f",
        head="lm_head",
        prefix="transformer.",
        ignored=(r"h\.\d+\.attn\.(bias|masked_bias|embed_positions)",),
    ),
    example="EleutherAI/gpt-j-6b",
    special="attention and MLP side by side behind one norm; a bias of the output head",
)
