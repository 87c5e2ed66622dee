"""The command that makes a training corpus: pack."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from moescale.cli.options import (
    MOST_SEED,
    MOST_TOKENS,
    Json,
    app,
    examples,
    file_option,
    number_option,
    print_json,
    text_option,
)
from moescale.errors import InputError

MOST_VOCABULARY = 2**24  # far beyond what exists


@app.command(
    epilog=examples(
        "moescale pack LICENSE --tokenizer bytes --validation 0 -o corpus",
        "moescale pack docs src --vocab-size 4096 -o corpus",
        "moescale pack 'web/*.jsonl.zst' --tokenizer tokenizer.json -o corpus",
        "moescale pack hf:cerebras/SlimPajama-627B --vocab-size 32000 --max-tokens 20B -o corpus",
        "moescale pack --megatron web_text_document -o corpus",
        "moescale pack --show corpus",
    )
)
def pack(
    sources: Annotated[
        list[str] | None,
        Argument(
            metavar="SOURCE..",
            help="Text: files, quoted globs and folders of json, jsonl, parquet, csv or plain text (also .gz, .zst), or hf:NAME.",
        ),
    ] = None,
    output: Annotated[
        Path | None, file_option("-o", "Folder of the corpus; a pack that was killed starts over.")
    ] = None,
    tokenizer: Annotated[
        str | None, text_option("--tokenizer", "A tokenizer.json, or bytes: a token a byte.", "PATH")
    ] = None,
    vocab_size: Annotated[
        int | None,
        number_option("--vocab-size", "Train a byte-level BPE of this size instead.", 1, MOST_VOCABULARY, whole=True),
    ] = None,
    validation: Annotated[
        float, number_option("--validation", "Share of the documents that training never sees.", 0, 1)
    ] = 0.01,
    text_field: Annotated[
        str, text_option("--text-field", "Field or column that holds the text; default text.")
    ] = "text",
    max_tokens: Annotated[
        int | None, number_option("--max-tokens", "Stop after this many training tokens.", 1, MOST_TOKENS, whole=True)
    ] = None,
    megatron: Annotated[
        list[str] | None,
        Option("--megatron", metavar="PREFIX", help="Tokens of Megatron-LM: PREFIX.bin and PREFIX.idx; repeatable."),
    ] = None,
    eos: Annotated[
        str | None,
        text_option("--eos", "Token that ends a document, where the tokenizer has none of a usual name.", "TOKEN"),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        Option("--exclude", metavar="PATTERN", help="Leave out files whose path, or a part of it, fits; repeatable."),
    ] = None,
    undecodable: Annotated[
        str, text_option("--undecodable", "What to do with text that is not UTF-8: error or skip.", "error|skip")
    ] = "error",
    seed: Annotated[int, number_option("--seed", "Chooses the validation documents.", 0, MOST_SEED, whole=True)] = 0,
    show: Annotated[
        Path | None, file_option("--show", "Instead: what a corpus holds, after reading all of it against its hashes.")
    ] = None,
    json_: Json = False,
) -> None:
    """Tokenise text once, into a corpus that `train` and `sweep` read."""
    from moescale.experiments.data.pack import open_corpus, verify
    from moescale.experiments.data.pack import pack as run_pack
    from moescale.experiments.data.sources import MEGATRON

    given = [*(sources or ()), *(MEGATRON + prefix for prefix in megatron or ())]
    if show is not None:
        if given or output is not None:
            raise InputError("goes without sources and -o", where="--show", next_step="leave them out")
        corpus = open_corpus(show)
        verify(corpus)
    elif output is None:
        raise InputError(
            "give -o FOLDER (pack) or --show FOLDER", next_step="`moescale pack --help` lists what there is"
        )
    else:
        corpus = run_pack(
            given,
            output,
            tokenizer=tokenizer,
            vocab_size=vocab_size,
            validation=validation,
            text_field=text_field,
            max_tokens=max_tokens,
            seed=seed,
            report=lambda line: print(line, file=sys.stderr, flush=True),
            exclude=exclude or (),
            eos=eos,
            undecodable=undecodable,
        )
    if json_:
        print_json(corpus.header())
        return
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
