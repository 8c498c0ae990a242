"""The texts of the golden answers, and a small vocabulary for them."""

WORDS = """the a cat dog sat on mat and is was of in to he she it they we you my your paris london france capital
city river tea milk water drink drinks like likes likely un run runs running walk good bad day night rain sun warm
cold big small house home world hello"""
ENDINGS = "##s ##ed ##ing ##aff ##able ##ly ##er ##est ##ness ##n ##t"
CHINESE = "我爱北京天安门中国的是不了在人有他这大来上们到说为子和你地"
PUNCTUATION = "! \" ' ( ) , - . / : ; ? @ _ 。 ， ？ ！"
LETTERS = "abcdefghijklmnopqrstuvwxyz"

TEXTS = (
    "The cat sat on the mat.",
    "hello world",
    "Unaffable RUNNING, walked?",
    "我爱北京天安门。",
    "I like 北京 and tea 😀!",
    "  spaces \t and\nlines  ",
    "naïve café Zürich",
    "xyzzy 123 @home (big) -- it's",
    "a",
)
PAIRS = (
    ("The cat sat on the mat.", "It was warm."),
    ("我爱北京。", "天安门在北京。"),
    ("Hello!", "We walked to the river and drank tea in the sun."),
    ("a", "b"),
)
MASKED: tuple[tuple[str, dict[str, object]], ...] = (
    ("Paris is the capital of {mask}.", {}),
    ("Paris is the {mask} of France.", {"top_k": 3}),
    ("The {mask} sat on the {mask}.", {"top_k": 2}),
    ("我爱{mask}京。", {"top_k": 4}),
    ("the {mask} is big", {"targets": ["cat", "dog", "house"]}),
    ("the {mask} is big", {"targets": ["unaffable", "cat", "cat"], "top_k": 2}),
    ("the {mask} is {mask}", {"targets": ["dog", "warm"]}),
    ("{mask}", {"top_k": 1}),
)
LABELLED = (
    ("The cat sat on the mat.", None),
    ("我爱北京天安门。", None),
    ("The cat sat.", "It was warm."),
    ("a", None),
)
TAGGED = (
    "The cat sat on the mat in Paris.",
    "Unaffable RUNNING, walked to London?",
    "我爱北京天安门。",
    "😀 hello 北京 👩‍👩‍👧 world",
    "naïve café",
)
LONG_TAGGED = (
    "The cat sat on the mat in Paris, and it was warm. Unaffable dogs, walked to London? "
    "We like tea in 北京 by the river. "
    "😀 The sun likes my big house: she said hello to the world! "
) * 5


def word_pieces(extra: str = "") -> list[str]:
    """A WordPiece vocabulary in the order of BERT's: special tokens, characters, words, endings."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
    pieces = [
        *special,
        *PUNCTUATION.split(),
        *"0123",
        *letters,
        *CHINESE,
        "😀",
        *WORDS.split(),
        *ENDINGS.split(),
        *extra.split(),
    ]
    return list(dict.fromkeys(pieces))
