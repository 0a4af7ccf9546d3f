"""A tokenizer of a few words, and a manifest for it."""

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from edge_client.bundle.manifest import AdapterSpec, FileSpec, Manifest, ModelSpec, Segment
from edge_client.data.encoder import TextEncoder

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *"abcdefgh"]
PAD, CLS, SEP, UNK = range(4)
A, B_, C, D, E, F, G, H = range(4, 12)
BATCH, LENGTH = 3, 8

MANIFEST = Manifest(
    made_by="tests",
    model=ModelSpec("toy", "Toy", "seq-cls", ("no", "yes"), 0, 100),
    adapter=AdapterSpec("lora", {}, "adapter.safetensors"),
    inputs=("input_ids", "attention_mask", "token_type_ids"),
    units=(),
    head=(),
    segments=(Segment("embed", 0, 0), Segment("head", 0, 0)),
    shapes=((BATCH, LENGTH),),
    directions=(1,),
    tokenizer=None,
    pad_token_id=PAD,
    runtimes={},
    verification=(),
    files=(FileSpec("adapter.safetensors", "0" * 64, 0),),
)


def tokenizer(*, special: bool = True) -> Tokenizer:
    result = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    result.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        result.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
        )
    return result


def encoder() -> TextEncoder:
    return TextEncoder(tokenizer(), MANIFEST, BATCH, LENGTH)
