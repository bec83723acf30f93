"""Which training pairs are left out: one pure function before subwords are cut, one after.

Each returns the name of the rule that drops a pair, or None. The counts of every rule go into the manifest.
"""

from nmtkit.config import CleaningConfig

RULES = ("both_blank", "one_sided_blank", "too_long", "length_ratio", "held_out_copy")
"""Every reason for leaving a training pair out. held_out_copy: a side equals that of a pair held out for validation."""


def rule_against_text(source: str, target: str, cleaning: CleaningConfig) -> str | None:
    """The rule that drops a pair of normalised lines."""
    blanks = (not source.strip()) + (not target.strip())
    if blanks:
        return "both_blank" if blanks == 2 else "one_sided_blank"
    if cleaning.max_characters and max(len(source), len(target)) > cleaning.max_characters:
        return "too_long"
    return None


def rule_against_lengths(source_tokens: int, target_tokens: int, cleaning: CleaningConfig) -> str | None:
    """The rule that drops a pair of that many subword tokens, end symbols not counted."""
    longer, shorter = max(source_tokens, target_tokens), min(source_tokens, target_tokens)
    if shorter == 0:
        return "both_blank" if longer == 0 else "one_sided_blank"
    if cleaning.max_tokens and longer > cleaning.max_tokens:
        return "too_long"
    if cleaning.max_ratio and longer > cleaning.max_ratio * shorter:
        return "length_ratio"
    return None
