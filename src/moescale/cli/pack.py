"""The command that makes a training corpus: pack."""

from __future__ import annotations

from moescale.cli.flat import flat
from moescale.cli.options import Json, app, examples
from moescale.cli.output import print_json, say
from moescale.errors import InputError
from moescale.options.experiments import PackOptions


@app.command(
    epilog=examples(
        "moescale pack LICENSE --tokenizer bytes --validation 0 -o corpus",
        "moescale pack docs src --tokenizer tokenizer.json -o corpus",
        "moescale pack hf:cerebras/SlimPajama-627B --tokenizer tokenizer.json --max-tokens 20B -o corpus",
        "moescale pack --show corpus",
    )
)
@flat()
def pack(wanted: PackOptions, json_: Json = False) -> None:
    """Tokenise text into a corpus for `train` and `sweep`."""
    from moescale.experiments.corpus import open_corpus, verify
    from moescale.experiments.pack import pack as run_pack

    if wanted.show is not None:
        if wanted.sources or wanted.output is not None:
            raise InputError("goes without sources and -o", where="--show", next_step="leave them out")
        corpus = open_corpus(wanted.show)
        verify(corpus)
    elif wanted.output is None or wanted.tokenizer is None:
        what = "give -o FOLDER and --tokenizer (a tokenizer.json, or bytes), or --show FOLDER"
        raise InputError(what, next_step="see `moescale pack --help`")
    else:
        corpus = run_pack(
            wanted.sources or (), wanted.output, tokenizer=wanted.tokenizer, eos=wanted.eos, seed=wanted.seed, report=say,
            validation=wanted.validation, text_field=wanted.text_field, max_tokens=wanted.max_tokens,
        )  # fmt: skip
    if json_:
        print_json(corpus.header())
        return
    splits = (
        f"{tokens:,} {kind} tokens of {documents:,} document{'s' * (documents != 1)}"
        for kind, tokens, documents in (
            ("training", corpus.n_train, corpus.n_train_documents),
            ("validation", corpus.n_validation, corpus.n_validation_documents),
        )
    )
    print(f"{corpus.folder}: {', '.join(splits)}")
    print(f"vocabulary {corpus.vocab_size:,} ({corpus.dtype}), end of text {corpus.eos_id}")
    print(f"sha256 {corpus.sha256}")
