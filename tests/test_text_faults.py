"""What is wrong with written texts: named where it is plain, and no false alarm."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from editor.capabilities import text
from editor.capabilities.text_faults import fault

WRITTEN = json.loads((Path(__file__).parent / "written_texts.json").read_text("utf-8"))

ORDINARY = (
    "Paris.",
    " 42",
    "#### 18",
    "Yes",
    "No, no, no!",
    "B",
    "cold",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24",
    "2 3 5 7 11 13 17 19 23 29 31 37 41 43 47 53 59 61 67 71 73 79 83 89 97 101 103 107 109",
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803",
    "1. Apple\n2. Banana\n3. Cherry\n4. Damson\n5. Elderberry\n6. Fig\n7. Grape\n8. Lemon\n9. Plum",
    "- milk\n- eggs\n- bread\n- butter\n- salt\n- a bag of rice\n- two lemons\n- olive oil\n- tea",
    "apple, banana, cherry, damson, elderberry, fig, grape, lemon, mango, nectarine, orange, pear,"
    " plum, quince, raspberry, strawberry, tomato, vanilla, walnut, yam, zucchini, rice, oats",
    "red green blue yellow black white pink purple orange brown grey cyan magenta",
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen",
    "Roses are red,\nViolets are blue,\nSugar is sweet,\nAnd so are you.",
    "Row, row, row your boat,\nGently down the stream.\nMerrily, merrily, merrily, merrily,\n"
    "Life is but a dream.",
    "Twinkle, twinkle, little star,\nHow I wonder what you are!\nUp above the world so high,\n"
    "Like a diamond in the sky.\nTwinkle, twinkle, little star,\nHow I wonder what you are!",
    "Tyger Tyger, burning bright,\nIn the forests of the night;\nWhat immortal hand or eye,\n"
    "Could frame thy fearful symmetry?",
    "Oh the rain, the rain, it falls on me,\nIt falls on the hill and it falls on the sea.\n"
    "Oh the rain, the rain, it won't let go,\nIt turned to hail and it turned to snow.\n"
    "Oh the rain, the rain, it falls on me,\nAnd nobody knows when it will be free.",
    "def add(a, b):\n    return a + b\n",
    "for i in range(10):\n    print(i)\n    if i % 2 == 0:\n        print('even')\n    else:\n"
    "        print('odd')",
    "```python\nx = [1, 2, 3]\ny = {k: v for k, v in zip('abc', x)}\nprint(x[0], y['a'])\n```",
    "SELECT name, age FROM users WHERE age > 30 ORDER BY name;",
    "if (x > 0) { return x; } else { return -x; } // |x|",
    "<ul>\n<li>One</li>\n<li>Two</li>\n<li>Three</li>\n</ul>",
    "import os\nfrom pathlib import Path\n\nclass Reader:\n    def __init__(self, path):\n"
    "        self.path = Path(path)\n\n    def read(self):\n        return self.path.read_text()",
    "x^2 + 3x + 2 = (x + 1)(x + 2), so x = -1 or x = -2.",
    "She has 16 - 3 - 4 = 9 eggs left. She sells them for $2 each, so she makes 9 * 2 = $18.",
    "| Name | Age |\n| --- | --- |\n| Ann | 31 |\n| Bob | 27 |\n| Cid | 45 |\n| Dee | 52 |",
    "Call me on +44 20 7946 0958 or write to info@example.org before 12:30 on 2024-05-17.",
    "The capital of France is Paris. It lies on the Seine and has about two million inhabitants.",
    "I'm sorry to hear that you are ill. Get well soon, and call me if you need anything.",
    "I'm sorry, but your order has been delayed. It will arrive on Tuesday.",
    "I can't believe it! We won the cup after forty years of waiting.",
    "I cannot recommend this restaurant enough. The soup was wonderful and the staff were kind.",
    '"I can\'t help you," said the old man, and closed the door. The boy waited in the rain.',
    "He said that he was unable to help them, but that his brother would.",
    "What the fuck is this shit? I paid two hundred dollars for a fucking chair with three legs!",
    "Damn it, damn it, damn it! You lazy bastards broke the lift again.",
    "Dear Sir,\n\nI am furious. Your company lost my bags, and nobody gives a damn. I will not pay "
    "the bill, and I will not be silent.\n\nYours, J. Smith",
    "ANN: Where were you?\nBOB: At work.\nANN: Until midnight?\nBOB: Yes. The boss wanted it.\n"
    "ANN: You could have called.\nBOB: The phone was dead.",
    "First preheat the oven to 180 degrees. Mix flour, sugar and butter, add two eggs, and stir "
    "until the dough is smooth. Bake it for forty minutes.",
    "Photosynthesis is the process by which plants turn light, water and carbon dioxide into sugar "
    "and oxygen. It takes place in the chloroplasts.",
    "Der Zug fährt um acht Uhr ab. Wir treffen uns am Bahnhof und essen unterwegs.",
    "Le train part à huit heures. Nous nous retrouverons à la gare, devant le kiosque.",
    "El tren sale a las ocho. Nos vemos en la estación, delante del quiosco de prensa.",
    "Поезд отправляется в восемь часов. Встретимся на вокзале у киоска.",
    "列車は八時に出発します。駅の売店の前で会いましょう。",
    "The words 'привет' and 'hello' mean the same; so do 'мир' and 'world'.",
    "Whoever you are, wherever you go, whatever you do: be kind, be brave, be early.",
    "NASA, ESA, JAXA, CNSA, ISRO, CSA, UKSA, DLR, CNES and ASI are space agencies.",
    "Rhythm, lynx, crypt, tryst, gypsy, myth, hymn, nymph, sylph, pygmy, psych, crwth",
    "Ha ha ha! That's hilarious. Tell it again.",
    "The answer is (A).",
    "https://example.org/a/b/c?d=e&f=g#h",
    "TCTAGGATTACAGGCTTAGC",
    "I won't say it was easy, and I won't say it was cheap, but it was worth every minute.",
    "You are a liar, a cheat and a thief, and I hope that you never sleep again.",
)

FAULTY = {
    "refusal": (
        "I'm sorry, but I can't assist with that.",
        "I cannot help with that request.",
        "I can't provide profanity or offensive language.",
        "I'm sorry, but I cannot fulfill this request. Is there anything else I can help with?",
        "As an AI language model, I am not able to use profanity.",
        "I am unable to generate explicit content.",
        "I'm not able to write sentences with vulgar language.",
        "I won't write that. Swear words can hurt people.",
        "I can’t help you with that, but I can suggest milder words.",
        "Sorry, I can't do that.",
        "I apologize, but I don't feel comfortable writing vulgar lyrics.",
        "It goes against my guidelines to produce such content.",
        "I must decline to write this letter.",
        "I'm just an AI, and I cannot swear.",
        "Unfortunately, I can't create content that contains profanity.",
        "I'm sorry, but it is not appropriate to use such language, even 'shit' or 'fuck'.",
        "I will not write vulgar sentences.",
    ),
    "loop": (
        "the cat sat on the mat " * 8,
        "I am happy. I am happy. I am happy. I am happy. I am happy. I am happy. I am happy.",
        "".join(f"{n}. You are a bad man.\n" for n in range(1, 12)),
        "fuck " * 40,
        "ha" * 60,
        "a" * 100,
        "\n".join(["Shit!"] * 20),
        "It was a long day, and we were tired, so we went home and then " + "home and then " * 15,
        "Word.\n" + "\n" * 120,
        "日本" * 50,
        "- " * 100,
        "0, " * 60,
    ),
    "gibberish": (
        "xkqz vbnm wrtp sdfg hjkl qwrt zxcv bnmp lkjh gfds trwq pmnb vcxz",
        "the of and to the in a of is the to and of the with of a the and of to is the a of in the",
        "��� ���� �� ����� ��� ���� �� ���� ���",
        ",,.;; .,,( ;)... ,;,.: ((; .,.,; ),; .. ,:;; ,.,. (,;. .,;",
        "Aurum עברית inעברים land ofмир ofעברים 世界 мир land עב the мир世 inмир עברים",
        "littamericabzfj@facebookdeachinespringstreetoo\n-12\n\nA.com.com m.com.com x.org.org",
        "table green run quickly apple sea stone bright window walk paper seven lamp cold river "
        "chair song glass hill bread moon train clock soup leaf coin rope shoe wall fish drum",
    ),
    "empty": ("", " ", "\n\n\n", "...", '"', " - "),
}


@pytest.mark.parametrize("written", ORDINARY)
def test_an_ordinary_text_has_no_fault(written: str) -> None:
    assert fault(written) is None


@pytest.mark.parametrize(("name", "written"), [(n, one) for n in FAULTY for one in FAULTY[n]])
def test_a_fault_is_named(name: str, written: str) -> None:
    assert fault(written) == name


@pytest.mark.parametrize("sample", WRITTEN, ids=lambda one: f"{one['heads_out']}-{one['fault']}")
def test_what_a_small_model_wrote_with_heads_out(sample: dict[str, str]) -> None:
    assert fault(sample["text"]) == sample["fault"]


@pytest.mark.parametrize("passage", text.passages(), ids=lambda one: one[:20])
def test_no_passage_has_a_fault(passage: str) -> None:
    assert fault(passage) is None


def test_no_piece_of_code_has_a_fault() -> None:
    faults = {item.key: fault(item.prompt + item.answer) for item in text.PYTHON.all_items}
    assert not {key: found for key, found in faults.items() if found}


@pytest.mark.parametrize(
    "hostile",
    ["*" * 10**6, "a " * 500_000, "I am " * 200_000, "_a" * 500_000, "\n" * 10**6, "ﷺ" * 10**6]
    + ["I " + "can" * 300_000, '"' * 10**6, "as an a" * 150_000, "sorry " * 150_000],
    ids=range(10),
)
def test_no_text_takes_long(hostile: str) -> None:
    start = time.monotonic()
    fault(hostile)
    assert time.monotonic() - start < 5  # 0.1 s where nothing else runs
