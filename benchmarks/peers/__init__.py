"""The toolkits that the speed of nmtkit is compared with, each in an environment of its own.

    python benchmarks/set_up_peers.py --work DIR        # once: the text and the environments
    python benchmarks/train.py --work DIR --peers opennmt transformers
    python benchmarks/translate.py --work DIR --peers opennmt transformers sockeye --reference ctranslate2

rules.py holds what is the same for nmtkit and all peers, environments.py runs a peer, probe.py counts inside of it.
A peer is a module with

    REQUIREMENTS          what pip installs, with its dependencies
    WITHOUT_DEPENDENCIES  what pip installs after that, where the package demands an older torch
    train(text, folder, size, updates)                the arguments of its Python that train a model into `folder`
    translate(model, source, output, batch, length)   those that translate a file, each line to `length` pieces
    convert(nmtkit_model, folder)                     (two of them) writes a model of nmtkit for the peer

transformers translates at natural length, too, from text to text: with length 0, and a converted model.
These functions are called by nmtkit's Python. What runs in the peer's own environment stands in the same file below
`main`: it may import the toolkit, but of this project only peers.probe.
"""
