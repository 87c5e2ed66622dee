"""The command that makes a training corpus: pack."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from moescale.cli.flat import flat
from moescale.cli.options import Json, app, examples
from moescale.cli.output import print_json, say
from moescale.errors import InputError
from moescale.options.experiments import PackOptions, SourceOptions

if TYPE_CHECKING:
    from moescale.experiments.corpus import Corpus


@app.command(
    epilog=examples(
        "moescale pack LICENSE --tokenizer bytes --validation 0 -o corpus",
        "moescale pack docs src --tokenizer tokenizer.json -o corpus",
        "moescale pack 'web/*.jsonl.zst' --tokenizer tokenizer.json -o corpus",
        "moescale pack hf:cerebras/SlimPajama-627B --tokenizer tokenizer.json --max-tokens 20B -o corpus",
        "moescale pack --megatron web_text_document -o corpus",
        "moescale pack --show corpus",
    )
)
@flat("sources", "output", "tokenizer", "vocab_size", "validation", "text_field", "max_tokens", "megatron", "show")
def pack(how: PackOptions, wanted: SourceOptions, json_: Json = False) -> None:
    """Tokenise text into a corpus for `train` and `sweep`."""
    from moescale.experiments.corpus import open_corpus, verify
    from moescale.experiments.pack import pack as run_pack
    from moescale.experiments.sources import MEGATRON

    sources = [*(wanted.sources or ()), *(MEGATRON + prefix for prefix in wanted.megatron or ())]
    if wanted.show is not None:
        if sources or wanted.output is not None:
            raise InputError("goes without sources and -o", where="--show", next_step="leave them out")
        corpus = open_corpus(wanted.show)
        verify(corpus)
    elif wanted.output is None:
        what, next_step = "give -o FOLDER (pack) or --show FOLDER", "see `moescale pack --help`"
        raise InputError(what, next_step=next_step)
    else:
        settings: dict[str, Any] = asdict(how) | {"exclude": how.exclude or ()}
        corpus = run_pack(sources, wanted.output, **settings, report=say)
    if json_:
        print_json(corpus.header())
    else:
        _tell(corpus)


def _tell(corpus: Corpus) -> None:
    splits = (
        f"{tokens:,} {split} tokens of {documents:,} document{'s' * (documents != 1)}"
        for split, tokens, documents in (
            ("training", corpus.n_train, corpus.n_train_documents),
            ("validation", corpus.n_validation, corpus.n_validation_documents),
        )
    )
    print(f"{corpus.folder}: {', '.join(splits)}")
    print(f"vocabulary {corpus.vocab_size:,} ({corpus.dtype}), end of text {corpus.eos_id}")
    print(f"sha256 {corpus.sha256}")
