"""A two-layer XLM-R with untrained weights, laid out like the folder of bge-m3."""

from collections.abc import Sequence
from pathlib import Path

import pytest

SIZE = 32  # of a vector


def build_bge_folder(folder: Path, texts: Sequence[str], *, seed: int = 0) -> Path:
    """Write the model to `folder`; its tokens are the words of `texts`. Skips the test without FlagEmbedding."""
    pytest.importorskip("FlagEmbedding", reason="the extra `bge` is not installed")
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaModel

    words = sorted({word for text in texts for word in text.split()})
    vocabulary = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", *words])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    specials = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
    specials |= {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=512, **specials).save_pretrained(folder)
    torch.manual_seed(seed)
    sizes = {"hidden_size": SIZE, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    # With the usual range of 0.02 all texts of an untrained model get nearly the same vector.
    config = XLMRobertaConfig(
        vocab_size=len(vocabulary), max_position_embeddings=514, initializer_range=0.3, **sizes
    )
    XLMRobertaModel(config).save_pretrained(folder)
    torch.save(torch.nn.Linear(SIZE, 1).state_dict(), folder / "sparse_linear.pt")
    torch.save(torch.nn.Linear(SIZE, SIZE).state_dict(), folder / "colbert_linear.pt")
    return folder
