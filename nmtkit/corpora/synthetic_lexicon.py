"""The words of the built-in English-German corpus and their forms (the grammar is in ``synthetic.py``).

The tables are text, parsed at import: German nouns with gender and plural, verbs with the forms that cannot be derived.
Every entry has one translation in every sentence of the grammar, and none is rare.
"""

from dataclasses import dataclass
from functools import cache
from itertools import product

NOMINATIVE, ACCUSATIVE, DATIVE = CASES = ("nominative", "accusative", "dative")
PLURAL = "p"  # beside the genders m, f, n: German does not tell the genders apart in the plural
FIRST, THIRD, MANY = range(3)  # agreement: I, he (she, it), we and they; an index into the forms of a verb
PERFECT, PRESENT = "perfect", "present"

# in the order of CASES; ENDINGS are those of der-words (dieser, jeder)
ENDINGS = {"m": ("er", "en", "em"), "f": ("e", "e", "er"), "n": ("es", "es", "em"), PLURAL: ("e", "e", "en")}
DEFINITE = {
    "m": ("der", "den", "dem"),
    "f": ("die", "die", "der"),
    "n": ("das", "das", "dem"),
    PLURAL: ("die", "die", "den"),
}
BARE_EIN = {("m", NOMINATIVE), ("n", NOMINATIVE), ("n", ACCUSATIVE)}  # ein, kein, mein without an ending
WEAK_E = {("m", NOMINATIVE), ("f", NOMINATIVE), ("f", ACCUSATIVE), ("n", NOMINATIVE), ("n", ACCUSATIVE)}


@dataclass(frozen=True)
class Noun:
    """A noun. ``english`` is (singular, plural); ``german`` maps (is_plural, case) to a form."""

    english: tuple[str, str]
    gender: str
    german: dict[tuple[bool, str], str]
    irregular: bool  # the English plural is not made by adding -s
    weak: bool  # takes -n or -en in every case but the nominative (der Junge, den Jungen)


@dataclass(frozen=True)
class Adjective:
    """An adjective. ``german`` is the predicate form; attributive forms add an ending to ``stem``."""

    english: str
    german: str
    stem: str


@dataclass(frozen=True)
class Determiner:
    """An article, possessive or number. ``english`` is (singular, plural), None where there is no such form.

    ``forms`` maps (gender or PLURAL, case) to the German word, "" where there is none; ``adjective_endings`` maps it to
    the ending of an adjective after the word.
    """

    english: tuple[str | None, str | None]
    forms: dict[tuple[str, str], str]
    adjective_endings: dict[tuple[str, str], str]


@dataclass(frozen=True)
class Verb:
    """Forms and frame of a verb. ``english`` and ``german`` hold the present tense: I, he, we or they.

    Attributes:
        particle: an English adverb (call up) or preposition (look for); may be empty.
        particle_moves: a pronoun goes before the particle (call him up, but look for him).
        prefix: of a separable German verb, left out of ``german``, part of ``infinitive`` and ``participle``.
        auxiliary: of the German perfect tense.
        subjects: groups of nouns; objects: (case, groups) in German order; adverbials: kinds the grammar knows.
    """

    english: tuple[str, str, str]
    english_participle: str
    particle: str
    particle_moves: bool
    german: tuple[str, str, str]
    infinitive: str
    participle: str
    prefix: str
    auxiliary: tuple[str, str, str]
    subjects: tuple[str, ...] = ("person",)
    objects: tuple[tuple[str, tuple[str, ...]], ...] = ()
    adverbials: tuple[str, ...] = ()


@dataclass(frozen=True)
class Modal:
    """A verb that takes an infinitive, with its negated forms: must not is darf nicht."""

    english: tuple[str, str, str]
    english_negated: tuple[str, str, str]
    german: tuple[str, str, str]
    german_negated: tuple[str, str, str]


HABEN, SEIN = ("habe", "hat", "haben"), ("bin", "ist", "sind")

# English singular and plural, gender, German singular and plural (weak: declined like der Junge); ...
NOUN_TABLE = {
    "person": """
        man men, m Mann Männer; woman women, f Frau Frauen; child children, n Kind Kinder;
        boy boys, m Junge Jungen weak; girl girls, n Mädchen Mädchen; doctor doctors, m Arzt Ärzte;
        teacher teachers, m Lehrer Lehrer; farmer farmers, m Bauer Bauern weak;
        neighbour neighbours, m Nachbar Nachbarn weak; student students, m Student Studenten weak;
        friend friends, m Freund Freunde; customer customers, m Kunde Kunden weak;
        prince princes, m Prinz Prinzen weak; queen queens, f Königin Königinnen;
        sister sisters, f Schwester Schwestern; thief thieves, m Dieb Diebe""",
    "animal": """
        dog dogs, m Hund Hunde; cat cats, f Katze Katzen; mouse mice, f Maus Mäuse; goose geese, f Gans Gänse;
        horse horses, n Pferd Pferde; bird birds, m Vogel Vögel; wolf wolves, m Wolf Wölfe;
        lion lions, m Löwe Löwen weak; bear bears, m Bär Bären weak""",
    "food": """
        apple apples, m Apfel Äpfel; pear pears, f Birne Birnen; egg eggs, n Ei Eier; cake cakes, m Kuchen Kuchen;
        potato potatoes, f Kartoffel Kartoffeln""",
    "reading": """
        book books, n Buch Bücher; letter letters, m Brief Briefe; newspaper newspapers, f Zeitung Zeitungen""",
    "thing": """
        key keys, m Schlüssel Schlüssel; cup cups, f Tasse Tassen; knife knives, n Messer Messer;
        bag bags, f Tasche Taschen; bottle bottles, f Flasche Flaschen; picture pictures, n Bild Bilder;
        ring rings, m Ring Ringe; flower flowers, f Blume Blumen; car cars, n Auto Autos; box boxes, f Kiste Kisten""",
    "clothing": """
        shirt shirts, n Hemd Hemden; coat coats, m Mantel Mäntel; jacket jackets, f Jacke Jacken;
        dress dresses, n Kleid Kleider; shoe shoes, m Schuh Schuhe""",
    "device": """
        lamp lamps, f Lampe Lampen; computer computers, m Computer Computer; radio radios, n Radio Radios""",
    "furniture": """
        table tables, m Tisch Tische; chair chairs, m Stuhl Stühle; bed beds, n Bett Betten;
        shelf shelves, n Regal Regale""",
    "building": """
        house houses, n Haus Häuser; school schools, f Schule Schulen; church churches, f Kirche Kirchen;
        hotel hotels, n Hotel Hotels; castle castles, n Schloss Schlösser""",
    "area": """
        garden gardens, m Garten Gärten; kitchen kitchens, f Küche Küchen; city cities, f Stadt Städte;
        village villages, n Dorf Dörfer; forest forests, m Wald Wälder""",
}
GROUPS = {  # names for several groups at once
    "portable": ("food", "reading", "thing", "clothing", "device"),
    "goods": ("food", "reading", "thing", "clothing", "device", "furniture"),
    "place": ("building", "area"),
}

# English | German (and the attributive stem, where it differs) | groups of nouns it goes with
ADJECTIVE_TABLE = """
    old | alt | person animal goods place
    big | groß | person animal goods place
    small | klein | person animal goods place
    beautiful | schön | person animal goods place
    young | jung | person animal
    tired | müde müd | person animal
    hungry | hungrig | person animal
    sick | krank | person animal
    strong | stark | person animal
    happy | glücklich | person
    sad | traurig | person
    friendly | freundlich | person
    famous | berühmt | person
    new | neu | goods place
    clean | sauber | goods place
    black | schwarz | animal goods
    red | rot | goods
    green | grün | goods
    blue | blau | goods
    expensive | teuer teur | goods
    heavy | schwer | goods
    dark | dunkel dunkl | place"""

# English: base, third person, participle, particle or preposition (+: a pronoun goes before it)
# | German: (prefix:)infinitive, third person, participle, ist (if the perfect takes sein)
# | groups of subjects | case and groups of objects | kinds of adverbials
VERB_TABLE = """
    sleep sleeps slept | schlafen schläft geschlafen | person animal | | place alone
    wait waits waited | warten wartet gewartet | person animal | | place company alone
    work works worked | arbeiten arbeitet gearbeitet | person | | place company alone
    sing sings sung | singen singt gesungen | person | | place company alone
    dance dances danced | tanzen tanzt getanzt | person | | place company alone
    get gets got +up | auf:stehen steht aufgestanden ist | person | | hour hour alone
    fall falls fallen +asleep | ein:schlafen schläft eingeschlafen ist | person animal | | hour inside
    arrive arrives arrived | an:kommen kommt angekommen ist | person | | hour inside company alone
    come comes come +back | zurück:kommen kommt zurückgekommen ist | person animal | | hour company alone
    shop shops shopped | ein:kaufen kauft eingekauft | person | | hour inside company alone
    buy buys bought | kaufen kauft gekauft | person | accusative goods | inside benefit
    sell sells sold | verkaufen verkauft verkauft | person | accusative goods | inside
    find finds found | finden findet gefunden | person animal | accusative goods | place
    look looks looked for | suchen sucht gesucht | person animal | accusative goods person animal | inside
    need needs needed | brauchen braucht gebraucht | person | accusative goods | benefit
    see sees seen | sehen sieht gesehen | person animal | accusative person animal place | -
    carry carries carried | tragen trägt getragen | person | accusative portable | benefit
    wash washes washed | waschen wäscht gewaschen | person | accusative clothing animal | place
    repair repairs repaired | reparieren repariert repariert | person | accusative device furniture | inside benefit
    eat eats eaten | essen isst gegessen | person | accusative food | place company alone
    read reads read | lesen liest gelesen | person | accusative reading page | place
    write writes written | schreiben schreibt geschrieben | person | accusative reading numeral | inside
    visit visits visited | besuchen besucht besucht | person | accusative person | inside
    love loves loved | lieben liebt geliebt | person | accusative animal food reading place | -
    call calls called +up | an:rufen ruft angerufen | person | accusative person | -
    invite invites invited | ein:laden lädt eingeladen | person | accusative person | -
    pick picks picked +up | ab:holen holt abgeholt | person | accusative person | place
    turn turns turned +on | ein:schalten schaltet eingeschaltet | person | accusative device | inside
    turn turns turned +off | aus:schalten schaltet ausgeschaltet | person | accusative device | inside
    throw throws thrown +away | weg:werfen wirft weggeworfen | person | accusative portable | -
    bring brings brought +along | mit:bringen bringt mitgebracht | person | accusative portable | benefit
    put puts put +on | an:ziehen zieht angezogen | person | accusative clothing | -
    help helps helped | helfen hilft geholfen | person | dative person | place
    thank thanks thanked | danken dankt gedankt | person | dative person | -
    follow follows followed | folgen folgt gefolgt ist | person animal | dative person animal | -
    listen listens listened to | zu:hören hört zugehört | person | dative person | place
    belong belongs belonged to | gehören gehört gehört | goods | dative person | -
    give gives given | geben gibt gegeben | person | dative person, accusative goods | -
    show shows shown | zeigen zeigt gezeigt | person | dative person, accusative goods | -
    send sends sent | schicken schickt geschickt | person | dative person, accusative goods | -"""

# verbs with a clause as their object
COMPLEMENT_TABLE = """
    say says said | sagen sagt gesagt
    know knows known | wissen weiß gewusst
    believe believes believed | glauben glaubt geglaubt
    hope hopes hoped | hoffen hofft gehofft
    ask asks asked | fragen fragt gefragt"""

COST = "cost costs cost | kosten kostet gekostet | goods"

# each of English and German: 1 to 19, then 20, 30 ... 90
ONES_TABLE = """
    one ein, two zwei, three drei, four vier, five fünf, six sechs, seven sieben, eight acht, nine neun, ten zehn,
    eleven elf, twelve zwölf, thirteen dreizehn, fourteen vierzehn, fifteen fünfzehn, sixteen sechzehn,
    seventeen siebzehn, eighteen achtzehn, nineteen neunzehn"""
TENS_TABLE = """
    twenty zwanzig, thirty dreißig, forty vierzig, fifty fünfzig, sixty sechzig, seventy siebzig, eighty achtzig,
    ninety neunzig"""

PRONOUNS = (("I", "ich", FIRST), ("he", "er", THIRD), ("she", "sie", THIRD), ("we", "wir", MANY), ("they", "sie", MANY))
OBJECT_PRONOUNS = {
    ACCUSATIVE: (("him", "ihn"), ("her", "sie"), ("them", "sie")),
    DATIVE: (("him", "ihm"), ("her", "ihr"), ("them", "ihnen")),
}
NAMES = ("Anna", "Julia", "Maria", "Paul", "Peter", "Thomas")

MODALS = {
    "can": Modal(("can",) * 3, ("cannot",) * 3, *[("kann", "kann", "können")] * 2),
    "must": Modal(("must",) * 3, ("must not",) * 3, ("muss", "muss", "müssen"), ("darf", "darf", "dürfen")),
    "want": Modal(
        ("want to", "wants to", "want to"),
        ("do not want to", "does not want to", "do not want to"),
        *[("will", "will", "wollen")] * 2,
    ),
    "should": Modal(("should",) * 3, ("should not",) * 3, *[("sollte", "sollte", "sollten")] * 2),
    "will": Modal(("will",) * 3, ("will not",) * 3, *[("werde", "wird", "werden")] * 2),
}


def _pairs(table: str) -> tuple[tuple[str, str], ...]:
    """Return the (English, German) pairs of a table such as "today = heute, now = jetzt"."""
    pairs = (entry.split(" = ") for entry in table.split(", "))
    return tuple((english, german) for english, german in pairs)


TIMES = {  # adverbials by tense; the modal verbs share one list
    PRESENT: _pairs(
        "today = heute, now = jetzt, every day = jeden Tag, in the evening = am Abend, on Monday = am Montag"
    ),
    PERFECT: _pairs("today = heute, this week = diese Woche"),
    "modal": _pairs("today = heute, tomorrow = morgen, soon = bald, next week = nächste Woche, on Monday = am Montag"),
}
ADVERBS = {
    "hour": _pairs("early = früh, late = spät"),
    "whereabouts": _pairs("here = hier, outside = draußen, at home = zu Hause"),
    "alone": _pairs("alone = allein"),
}
PREPOSITIONS = {  # kind of adverbial: (English, German, case, groups of nouns)
    "inside": (("in", "in", DATIVE, GROUPS["place"]),),
    "near": (
        ("behind", "hinter", DATIVE, ("building",)),
        ("next to", "neben", DATIVE, ("building",)),
        ("in front of", "vor", DATIVE, ("building",)),
    ),
    "surface": (("on", "auf", DATIVE, ("furniture",)), ("under", "unter", DATIVE, ("furniture",))),
    "company": (("with", "mit", DATIVE, ("person", "animal")),),
    "benefit": (("for", "für", ACCUSATIVE, ("person",)),),
}
NUMBERED = {
    "page": ("page {}", "Seite {}"),
    "numeral": ("the number {}", "die Zahl {}"),
    "room": ("in room {}", "in Zimmer {}"),
    "age": ("{} years old", "{} Jahre alt"),
    "price": ("{} euros", "{} Euro"),
}
DEGREES = (("", ""), ("very ", "sehr "), ("too ", "zu "))
CONJUNCTIONS = _pairs("because = weil, although = obwohl, when = wenn, while = während")
PRESENT_ONLY = {"when", "while"}  # of both clauses: in the past, "when" could be als
THAT, WHETHER = _pairs("that = dass, whether = ob")
COMPLEMENTS = {  # conjunctions after the verbs of COMPLEMENT_TABLE
    "say": (THAT,), "know": (THAT, WHETHER), "believe": (THAT,), "hope": (THAT,), "ask": (WHETHER,),
}  # fmt: skip


def _expand(groups: str) -> tuple[str, ...]:
    return tuple(group for name in groups.split() if name != "-" for group in GROUPS.get(name, (name,)))


def _noun(entry: str) -> Noun:
    english, german = (words.split() for words in entry.split(","))
    gender, singular, plural, *weak = german
    oblique = plural if weak else singular
    forms = {(False, NOMINATIVE): singular, (False, ACCUSATIVE): oblique, (False, DATIVE): oblique}
    forms |= {(True, NOMINATIVE): plural, (True, ACCUSATIVE): plural}
    # The dative plural adds -n, but not after -n or -s: den Häusern, den Frauen, den Autos.
    forms[True, DATIVE] = plural if plural.endswith(("n", "s")) else plural + "n"
    regular = {english[0] + "s", english[0] + "es", english[0][:-1] + "ies"}
    return Noun((english[0], english[1]), gender, forms, english[1] not in regular, bool(weak))


def parse_verb(line: str) -> Verb:
    """Return the verb in a line of the tables above."""
    columns = [column.strip() for column in line.split("|")] + [""] * 5
    base, third, english_participle, particle = (columns[0] + " ").split(" ", 3)
    infinitive, german_third, participle, *sein = columns[1].split()
    prefix, simple = infinitive.split(":") if ":" in infinitive else ("", infinitive)
    first = simple[:-1] if german_third.endswith("t") else german_third  # ich weiß, er weiß: a former past tense
    frames = [frame.split(maxsplit=1) for frame in columns[3].split(",") if frame]
    return Verb(
        english=(base, third, base),
        english_participle=english_participle,
        particle=particle.strip().removeprefix("+"),
        particle_moves=particle.startswith("+"),
        german=(first, german_third, simple),
        infinitive=prefix + simple,
        participle=participle,
        prefix=prefix,
        auxiliary=SEIN if sein else HABEN,
        subjects=_expand(columns[2]) or ("person",),
        objects=tuple((case, _expand(groups)) for case, groups in frames),
        adverbials=tuple(columns[4].replace("-", "").split()),
    )


def make_determiner(singular: str | None, plural: str | None, german: str, kind: str) -> Determiner:
    """Return a determiner with its forms and the endings of adjectives after it.

    Args:
        singular, plural: English; None if there is no such form.
        german: the stem.
        kind: ``der-word`` (weak adjective endings), ``ein-word`` (mixed), or ``none`` for an uninflected or missing
            word (strong).
    """
    forms, adjective_endings = {}, {}
    for gender, (index, case) in product(ENDINGS, enumerate(CASES)):
        key, ending = (gender, case), ENDINGS[gender][index]
        weak = "e" if key in WEAK_E else "en"
        bare = kind == "none" or (kind == "ein-word" and key in BARE_EIN)
        forms[key] = DEFINITE[gender][index] if german == "der" else german if bare else german + ending
        adjective_endings[key] = ending if bare else weak
    return Determiner((singular, plural), forms, adjective_endings)


ONES, EINER = zip(("", ""), *map(str.split, ONES_TABLE.split(",")), strict=True)
TENS, ZEHNER = zip(("", ""), ("", ""), *map(str.split, TENS_TABLE.split(",")), strict=True)
NOUNS = {group: tuple(map(_noun, table.split(";"))) for group, table in NOUN_TABLE.items()}
ADJECTIVES: dict[str, list[Adjective]] = {}  # by the group of nouns they go with
for _line in ADJECTIVE_TABLE.strip().splitlines():
    _english, _german, _groups = (column.strip() for column in _line.split("|"))
    for _group in _expand(_groups):
        _adjective = Adjective(_english, _german.split()[0], _german.split()[-1])
        ADJECTIVES.setdefault(_group, []).append(_adjective)
VERBS = tuple(map(parse_verb, VERB_TABLE.strip().splitlines()))
COMPLEMENT_VERBS = tuple(map(parse_verb, COMPLEMENT_TABLE.strip().splitlines()))
TO_COST = parse_verb(COST)
TO_BE = Verb(("am", "is", "are"), "been", "", False, SEIN, "sein", "gewesen", "", SEIN)

DETERMINERS = {  # by the names that the grammar uses
    "the": make_determiner("the", "the", "der", "der-word"),
    "this": make_determiner("this", "these", "dies", "der-word"),
    "every": make_determiner("every", None, "jed", "der-word"),
    "a": make_determiner("a", None, "ein", "ein-word"),
    "no": make_determiner("no", "no", "kein", "ein-word"),
    "not a": make_determiner("a", "", "kein", "ein-word"),  # does not buy a book: kauft kein Buch
    "bare": make_determiner(None, "", "", "none"),
    "my": make_determiner("my", "my", "mein", "ein-word"),
    "his": make_determiner("his", "his", "sein", "ein-word"),
    "her": make_determiner("her", "her", "ihr", "ein-word"),
    "our": make_determiner("our", "our", "unser", "ein-word"),
}


def english_number(number: int) -> str:
    """Return a number from 1 to 999 in words: three hundred and forty-two."""
    hundreds, rest = divmod(number, 100)
    tens, ones = divmod(rest, 10)
    below = ONES[rest] if rest < 20 else TENS[tens] + (f"-{ONES[ones]}" if ones else "")
    if not hundreds:
        return below
    return f"{ONES[hundreds]} hundred" + (f" and {below}" if rest else "")


def german_number(number: int) -> str:
    """Return a number from 1 to 999 in words, as used in counting: dreihundertzweiundvierzig, einhunderteins."""
    hundreds, rest = divmod(number, 100)
    tens, ones = divmod(rest, 10)
    if rest == 1:  # only at the end: einhunderteins, but einundzwanzig
        below = "eins"
    elif rest < 20:
        below = EINER[rest] if rest else ""
    else:
        below = (f"{EINER[ones]}und" if ones else "") + ZEHNER[tens]
    return (f"{EINER[hundreds]}hundert" if hundreds else "") + below


@cache
def number_determiner(number: int) -> Determiner:
    """Return a number word as a determiner. It has no endings."""
    return make_determiner(None, english_number(number), german_number(number), "none")
