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

CONTEXT = "The cat sat on the mat in Paris, and it was warm. Unaffable dogs walked to London by the river."
LONG_CONTEXT = (
    "The cat sat on the mat in Paris, and it was warm. We like tea in 北京 by the river. "
    "😀 The sun likes my big house: she said hello to the world! Milk is good, water is cold. "
) * 4
LONG_CHINESE = "我爱北京天安门。他们在中国，我来上子和大地。你不是人，为了到天安门！" * 8
WINDOWS: dict[str, object] = {"max_seq_len": 60, "doc_stride": 20}
IMPOSSIBLE: dict[str, object] = {"handle_impossible_answer": True}
ASKED: tuple[tuple[str, str, dict[str, object]], ...] = (  # question, context, parameters
    ("Where is the cat?", CONTEXT, {}),
    ("Where is the cat?", CONTEXT, {"top_k": 3}),
    ("Who walked to London?", CONTEXT, {"top_k": 4, "align_to_words": False}),
    ("Who walked to London?", CONTEXT, {"top_k": 3, "max_answer_len": 2}),
    ("Is it warm?", CONTEXT, {"top_k": 3} | IMPOSSIBLE),
    ("Is it warm?", CONTEXT, {"max_answer_len": 1} | IMPOSSIBLE),
    ("Is it warm?", "hello Paris", {"top_k": 5} | IMPOSSIBLE),
    ("Café?", "  naïve café\tZürich 😀 👩‍👩‍👧 (big) world -- it's  ", {"top_k": 3}),
    ("他在北京？", "我爱北京天安门。", {"top_k": 2}),
    ("他在北京？", "我爱北京天安门。", {"top_k": 2, "align_to_words": False}),
    ("What is good?", LONG_CONTEXT, {}),
    ("What is good?", LONG_CONTEXT, {"top_k": 5}),
    ("What is good?", LONG_CONTEXT, {"top_k": 5, "align_to_words": False, "max_answer_len": 40}),
    ("What is good?", LONG_CONTEXT, {"top_k": 3} | WINDOWS | IMPOSSIBLE),
    ("What is good in the sun?", LONG_CONTEXT, {"max_seq_len": 100, "doc_stride": 0, "top_k": 2}),
    ("他在北京？", LONG_CHINESE, {"top_k": 3}),
    ("他在北京？", LONG_CHINESE, {"top_k": 3, "align_to_words": False} | WINDOWS),
)
CHOICES = (
    ("The cat sat on the mat.", ("It was warm.", "The dog drinks tea.")),
    ("我爱北京天安门。", ("他们在中国。", "我来上子和大地。", "The cat sat.")),
    ("hello world", ("a", "we walked to the river and drank tea in the sun", "Paris", "é")),
    ("a", ("b",)),
)


def word_pieces() -> list[str]:
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
    ]
    return list(dict.fromkeys(pieces))
