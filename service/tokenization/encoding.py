"""How many tokens of each side of a pair are kept."""


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each side to keep: the longer side is cut first; on a tie the second keeps the odd token."""
    shorter = min(first, second, room // 2)
    if first + second <= room:
        return first, second
    return (shorter, room - shorter) if first <= second else (room - shorter, shorter)
