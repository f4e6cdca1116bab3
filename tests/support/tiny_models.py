"""Random models of a few thousand parameters, decoders and masked ones, and a byte-pair tokenizer for them."""

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

VOCABULARY = 300
WORDS = (
    "the film was great . the plot was terrible . a story that it was good to see , and bad to"
    " forget ! it wasn't the best ; it was the worst ."
)


SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
SIZES |= {"vocab_size": VOCABULARY, "max_position_embeddings": 64}
OPT = SIZES | {"word_embed_proj_dim": 32, "ffn_dim": 64, "init_std": 0.3}
WIDE = SIZES | {"intermediate_size": 64, "initializer_range": 0.3}
LLAMA = WIDE | {"num_key_value_heads": 2}
MASKED_LM = WIDE | {
    "max_position_embeddings": 66
}  # RoBERTa: two of them come before the first token
GPT2 = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64}
GPT2 |= {"vocab_size": VOCABULARY, "initializer_range": 0.3}


def opt(**changes):
    return _random(OPTForCausalLM, OPTConfig(**OPT | changes))


def llama(**changes):
    return _random(LlamaForCausalLM, LlamaConfig(**LLAMA | changes))


def mistral(**changes):
    return _random(MistralForCausalLM, MistralConfig(**LLAMA | changes))


def gpt2(**changes):
    return _random(GPT2LMHeadModel, GPT2Config(**GPT2 | changes))


def roberta(**changes):
    return _random(RobertaForMaskedLM, RobertaConfig(**MASKED_LM | {"pad_token_id": 1} | changes))


def bert(**changes):
    return _random(BertForMaskedLM, BertConfig(**MASKED_LM | {"pad_token_id": 0} | changes))


MASKED = {"roberta": roberta, "bert": bert}
DECODERS = {"opt": opt, "llama": llama, "mistral": mistral, "gpt2": gpt2}


def tokenizer(bos="</s>", mask=None):
    """Byte-level BPE that prepends `bos`, as OPT's does; with None it prepends nothing.

    With a `mask` it is RoBERTa's instead: a token in front, one behind, and a mask that takes the space before it.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>" if mask else "<unk>", "<pad>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator([WORDS] * 3, trainer)
    if mask is not None:
        bpe.add_special_tokens([AddedToken(mask, lstrip=True)])
        bpe.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
        names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
        return PreTrainedTokenizerFast(tokenizer_object=bpe, mask_token=mask, **names)
    if bos is not None:
        bpe.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, bpe.token_to_id(bos))]
        )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="</s>", eos_token="</s>")


def _random(kind, config):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(config).eval()
