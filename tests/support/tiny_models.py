"""Random models of a few thousand parameters, decoders and masked ones, and a byte-pair tokenizer for them."""

from functools import partial

import numpy as np
import torch
import transformers
from tokenizers import AddedToken, ByteLevelBPETokenizer, Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from zo.tasks import Encoded

VOCABULARY = 300
WORDS = "the film was great . the plot was terrible . a story that it was good to see , and bad to"
WORDS += " forget ! it wasn't the best ; it was the worst ."

BARE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 300}
SIZES = BARE | {"max_position_embeddings": 64}
OPT = SIZES | {"word_embed_proj_dim": 32, "ffn_dim": 64, "init_std": 0.3}
STEEP = SIZES | {"initializer_range": 0.3}
WIDE = STEEP | {"intermediate_size": 64}
LLAMA = WIDE | {"num_key_value_heads": 2}
MASKED_LM = WIDE | {"max_position_embeddings": 66}  # RoBERTa's first token has position 2
BART = {"d_model": 32, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "init_std": 0.3}
BART |= {f"{part}coder_{of}": 2 for part in ("en", "de") for of in ("layers", "attention_heads")}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
T5 |= {"vocab_size": VOCABULARY, "decoder_start_token_id": 1, "pad_token_id": 1, "eos_token_id": 2}


def seeded(make):
    """Returns a model that is made with the same random numbers every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().eval()


def random_model(name, **settings):
    """Returns a model of one of transformers' classes."""
    kind = getattr(transformers, name)
    return seeded(lambda: kind(kind.config_class(**settings)))


def decoder(name, settings, **more):
    return partial(random_model, f"{name}ForCausalLM", **settings | more)


opt = decoder("OPT", OPT)
llama = decoder("Llama", LLAMA)
mistral = decoder("Mistral", LLAMA)
gpt2 = partial(random_model, "GPT2LMHeadModel", **STEEP)
roberta = partial(random_model, "RobertaForMaskedLM", **MASKED_LM, pad_token_id=1)
bert = partial(random_model, "BertForMaskedLM", **MASKED_LM, pad_token_id=0)
t5 = partial(random_model, "T5ForConditionalGeneration", **T5)

REFORMER = {"hidden_size": 32, "num_attention_heads": 2, "attention_head_size": 16}
REFORMER |= {"attn_layers": ["local", "lsh"], "local_attn_chunk_length": 8, "num_buckets": 4}
REFORMER |= {"lsh_attn_chunk_length": 8, "hash_seed": 0, "is_decoder": True, "vocab_size": 300}
REFORMER |= {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [16, 16], "initializer_range": 0.3}
reformer = partial(random_model, "ReformerModelWithLMHead", **REFORMER)

MASKED = {"roberta": roberta, "bert": bert}
DECODERS = {"opt": opt, "llama": llama, "mistral": mistral, "gpt2": gpt2}
MODELS = {
    **DECODERS,
    **MASKED,
    "opt, untied": partial(opt, tie_word_embeddings=False),
    "llama, tied": partial(llama, tie_word_embeddings=True, attention_bias=True),
    "mistral, tied": partial(mistral, tie_word_embeddings=True),
    "gpt2, untied": partial(gpt2, tie_word_embeddings=False),
}

GPT_NEO = {"attention_types": [[["global", "local"], 1]], "window_size": 6}
DEBERTA = MASKED_LM | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
DEBERTA |= {"position_biased_input": False, "pad_token_id": 0}  # knows distances in columns
WINDOWED = LLAMA | {"sliding_window": 6, "initializer_range": 1.0}
MIXED = WINDOWED | {"layer_types": ["sliding_attention", "full_attention"]}
GEMMA = {"head_dim": 8}
EAGER = GEMMA | {"attn_implementation": "eager"}
PICTURES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
PICTURES = {"text_config": MIXED | GEMMA, "vision_config": PICTURES}
WINDOWS = {
    "gemma 2": decoder("Gemma2", WINDOWED | GEMMA),
    "gemma 3": decoder("Gemma3", MIXED | GEMMA),
    "gemma 3, with pictures": partial(random_model, "Gemma3ForConditionalGeneration", **PICTURES),
    "phi 3": decoder("Phi3", WINDOWED, pad_token_id=1),
    "gpt-oss": decoder("GptOss", MIXED | EAGER, num_local_experts=4),
    "olmo 3": decoder("Olmo3", MIXED),
    "starcoder 2": decoder("Starcoder2", WINDOWED),
    "ministral": decoder("Ministral", MIXED | GEMMA),
    "exaone 4": decoder("Exaone4", MIXED),
}
ODD = ("gemma 3, with pictures", "gpt-oss")
WHOLE = {name: make for name, make in (MODELS | WINDOWS).items() if name not in ODD}
"""Those but one whose tower no text reads, and one whose experts are no layers."""
PACKED = {
    "capped logits": decoder(
        "Gemma2", LLAMA | EAGER, initializer_range=1.0, final_logit_softcapping=2.0
    ),
    "a sliding window": partial(mistral, sliding_window=6),  # packs texts that are shorter
    "a loss beside its head": partial(
        random_model, "DistilBertForMaskedLM", **BARE | {"vocab_size": 301}, hidden_dim=64
    ),
}
ALONE = {
    "gpt-j": decoder("GPTJ", STEEP, rotary_dim=8),
    "gpt-neo": decoder("GPTNeo", STEEP | GPT_NEO),
    "mpt": decoder("Mpt", BARE, initializer_range=0.3),
    "falcon": decoder("Falcon", STEEP, alibi=True),
    "stablelm": decoder("StableLm", LLAMA),
    "no positions": decoder("Bloom", BARE),
    "no attention": decoder(
        "Mamba", {}, hidden_size=32, num_hidden_layers=2, vocab_size=VOCABULARY
    ),
    "convolutions": decoder("Lfm2", LLAMA, layer_types=["conv", "full_attention"]),  # over columns
    "distances": partial(random_model, "DebertaV2ForMaskedLM", **DEBERTA),
}
UNUSUAL = PACKED | WINDOWS | ALONE


def kind_of(model):
    """Returns what `model.kind` says of it."""
    return "masked" if type(model).__name__.endswith("MaskedLM") else "decoder"


def examples_of(candidates, lengths=(7, 2, 19, 1, 11), masked=False, start=()):
    """Prompts of these lengths behind a common start, and candidates of these; or a mask and words for it."""
    random, found = np.random.default_rng(0), []

    def tokens(n):
        return random.integers(5, VOCABULARY, n).tolist()

    for i, n in enumerate(lengths):
        prompt, at = [*start, *tokens(n)], len(start) + i % (n + 1)
        if masked:
            words = [[7], [201], [44]]
            found.append(Encoded([*prompt[:at], 3, *prompt[at:]], words, i % 3, at))
        else:
            found.append(Encoded(prompt, [tokens(m) for m in candidates], i % len(candidates)))
    return found


def tokenizer(bos="</s>", mask=None):
    """Byte-level BPE that prepends `bos`, as OPT's does; with None it prepends nothing.

    With a `mask` it is RoBERTa's instead: a token in front, one behind, and a mask that takes the space before it.
    """
    first = "<unk>" if mask is None else "<s>"
    bpe = ByteLevelBPETokenizer()
    learned = {"vocab_size": VOCABULARY, "min_frequency": 0, "show_progress": False}
    bpe.train_from_iterator([WORDS] * 3, special_tokens=[first, "<pad>", "</s>"], **learned)
    given = {"bos_token": "</s>", "eos_token": "</s>"}
    around = "$A" if bos is None else f"{bos} $A"
    if mask is not None:
        bpe.add_special_tokens([AddedToken(mask, lstrip=True)])
        given |= {"bos_token": "<s>", "pad_token": "<pad>", "mask_token": mask}
        around = "<s> $A </s>"
    bpe.post_processor = processors.TemplateProcessing(
        single=around, special_tokens=[(first, 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(bpe.to_str()), **given)
