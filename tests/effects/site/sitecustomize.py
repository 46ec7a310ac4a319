"""Python runs this at its start, in every process of a system under test."""

import os

if os.environ.get("EFFECT_PLAN"):
    from tests.effects.points import install

    install()
