//! Languages: their names, the function words that identify a text's language, and their stemmers.

use std::sync::LazyLock;

use hashbrown::HashMap;
use rust_stemmers::{Algorithm, Stemmer};

/// A language that has a stemmer or function words, or is written without spaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Language(u8);

/// The script by which a language is recognized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Script {
    Latin,
    Cyrillic,
    Greek,
    Arabic,
    Tamil,
    /// A script of no language below, or one whose words are not compared.
    Other,
}

/// Name, code of its function words, script, stemmer.
type LanguageRow = (&'static str, Option<&'static str>, Script, Option<Algorithm>);

/// If Postgres has a text search configuration for a language, the name is the same.
const ROWS: [LanguageRow; 32] = [
    ("arabic", Some("ar"), Script::Arabic, Some(Algorithm::Arabic)),
    ("armenian", None, Script::Other, None),
    ("basque", Some("eu"), Script::Latin, None),
    ("catalan", Some("ca"), Script::Latin, None),
    ("chinese", Some("zh"), Script::Other, None),
    ("danish", Some("da"), Script::Latin, Some(Algorithm::Danish)),
    ("dutch", Some("nl"), Script::Latin, Some(Algorithm::Dutch)),
    ("english", Some("en"), Script::Latin, Some(Algorithm::English)),
    ("finnish", Some("fi"), Script::Latin, Some(Algorithm::Finnish)),
    ("french", Some("fr"), Script::Latin, Some(Algorithm::French)),
    ("german", Some("de"), Script::Latin, Some(Algorithm::German)),
    ("greek", Some("el"), Script::Greek, Some(Algorithm::Greek)),
    ("hindi", None, Script::Other, None),
    ("hungarian", Some("hu"), Script::Latin, Some(Algorithm::Hungarian)),
    ("indonesian", Some("id"), Script::Latin, None),
    ("irish", None, Script::Other, None),
    ("italian", Some("it"), Script::Latin, Some(Algorithm::Italian)),
    ("japanese", None, Script::Other, None),
    ("korean", None, Script::Other, None),
    ("lithuanian", None, Script::Other, None),
    ("nepali", Some("ne"), Script::Other, None),
    ("norwegian", Some("no"), Script::Latin, Some(Algorithm::Norwegian)),
    ("portuguese", Some("pt"), Script::Latin, Some(Algorithm::Portuguese)),
    ("romanian", Some("ro"), Script::Latin, Some(Algorithm::Romanian)),
    ("russian", Some("ru"), Script::Cyrillic, Some(Algorithm::Russian)),
    ("serbian", None, Script::Other, None),
    ("spanish", Some("es"), Script::Latin, Some(Algorithm::Spanish)),
    ("swedish", Some("sv"), Script::Latin, Some(Algorithm::Swedish)),
    ("tamil", Some("ta"), Script::Tamil, Some(Algorithm::Tamil)),
    ("thai", None, Script::Other, None),
    ("turkish", Some("tr"), Script::Latin, Some(Algorithm::Turkish)),
    ("yiddish", None, Script::Other, None),
];

/// Letters that occur in neither Russian nor Arabic. A text with such a letter is in a related
/// language, which has no stemmer here.
const NEIGHBORS: [char; 27] = [
    'і', 'ї', 'є', 'ґ', 'ў', 'ј', 'љ', 'њ', 'ћ', 'ђ', 'џ', 'қ', 'ң', 'ү', 'ұ', 'һ', 'ә', 'ө', 'پ', 'چ', 'ژ',
    'گ', 'ک', 'ی', 'ٹ', 'ڈ', 'ے',
];

/// For each function word, the languages that have it, one bit each.
static FUNCTION_WORDS: LazyLock<HashMap<&'static str, u32>> = LazyLock::new(|| {
    let mut words: HashMap<&'static str, u32> = HashMap::new();
    for (language, (_, code, ..)) in Language::all().zip(ROWS) {
        for word in code.and_then(stop_words::lookup).unwrap_or_default() {
            *words.entry(word).or_default() |= language.bit();
        }
    }
    words
});

impl Language {
    /// All languages, by name.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..ROWS.len() as u8).map(Self)
    }

    /// The language with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::all().find(|language| language.name() == name)
    }

    /// The English name in lower case.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// True if the language writes compounds as one word.
    pub(crate) fn compounds(self) -> bool {
        matches!(
            self.name(),
            "german" | "dutch" | "danish" | "norwegian" | "swedish" | "finnish" | "hungarian"
        )
    }

    pub(crate) fn stemmer(self) -> Option<Stemmer> {
        self.row().3.map(Stemmer::create)
    }

    /// True if this is one of the language's function words, which have no meaning of their own.
    pub(crate) fn is_function_word(self, word: &str) -> bool {
        FUNCTION_WORDS.get(word).is_some_and(|languages| languages & self.bit() != 0)
    }

    fn bit(self) -> u32 {
        1 << self.0
    }

    fn row(self) -> &'static LanguageRow {
        &ROWS[usize::from(self.0)]
    }
}

/// The language of a text, guessed from its words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Guess {
    language: Option<Language>,
    /// The script of most words.
    script: Option<Script>,
}

impl Guess {
    /// Guesses from these words, which are in lower case.
    pub(crate) fn of<'a>(words: impl Iterator<Item = &'a str>) -> Self {
        let (mut points, mut letters, mut is_neighbor) =
            ([0.0_f32; ROWS.len()], [0_u32; Script::ALL.len()], false);
        for word in words {
            let Some(first) = word.chars().next().filter(|first| !first.is_numeric()) else { continue };
            let script = Script::of(first);
            letters[script as usize] += 1;
            is_neighbor |= matches!(script, Script::Cyrillic | Script::Arabic) && word.contains(NEIGHBORS);
            let mut languages = FUNCTION_WORDS.get(word).copied().unwrap_or_default();
            let share = 1.0 / languages.count_ones().max(1) as f32;
            while languages != 0 {
                points[languages.trailing_zeros() as usize] += share;
                languages &= languages - 1;
            }
        }
        let most = |script: &Script| letters[*script as usize];
        let Some(script) = Script::ALL.into_iter().max_by_key(most).filter(|script| most(script) > 0) else {
            return Self::default();
        };
        if is_neighbor {
            return Self::default();
        }
        let points = |language: &Language| points[usize::from(language.0)];
        let best = Language::all()
            .filter(|language| language.row().2 == script)
            .max_by(|a, b| points(a).total_cmp(&points(b)))
            .filter(|best| points(best) > 0.0 || script.has_one_language());
        Self { language: best, script: Some(script) }
    }

    /// The guessed language. If the words do not decide, returns `assumed`, provided that it uses
    /// their script.
    pub(crate) fn or(self, assumed: Option<Language>) -> Option<Language> {
        self.language.or(assumed.filter(|assumed| Some(assumed.row().2) == self.script))
    }
}

impl Script {
    const ALL: [Self; 6] = [Self::Latin, Self::Cyrillic, Self::Greek, Self::Arabic, Self::Tamil, Self::Other];

    /// True if only one of the languages above uses the script.
    fn has_one_language(self) -> bool {
        matches!(self, Self::Cyrillic | Self::Greek | Self::Arabic | Self::Tamil)
    }

    fn of(letter: char) -> Self {
        match letter {
            'a'..='z' | '\u{df}'..='\u{24f}' => Self::Latin,
            '\u{370}'..='\u{3ff}' => Self::Greek,
            '\u{400}'..='\u{52f}' => Self::Cyrillic,
            '\u{600}'..='\u{6ff}' => Self::Arabic,
            '\u{b80}'..='\u{bff}' => Self::Tamil,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, assumed: Option<&str>) -> Option<&'static str> {
        let text = text.to_lowercase();
        let guess = Guess::of(text.split([' ', '\'']));
        guess.or(assumed.and_then(Language::parse)).map(Language::name)
    }

    #[test]
    fn function_words_show_the_language() {
        for (text, language) in [
            ("The user has a dog", "english"),
            ("Der Nutzer hat einen Hund", "german"),
            ("L'utilisateur a un chien qui aime la mer", "french"),
            ("El usuario tiene un perro y una casa", "spanish"),
            ("У пользователя есть собака", "russian"),
            ("Ο χρήστης έχει έναν σκύλο", "greek"),
            ("المستخدم لديه كلب", "arabic"),
        ] {
            assert_eq!(of(text, Some("danish")), Some(language), "{text}");
        }
    }

    #[test]
    fn a_language_is_assumed_if_its_script_fits() {
        assert_eq!(of("Zürich 2024", None), None);
        assert_eq!(of("Zürich 2024", Some("german")), Some("german"));
        assert_eq!(of("Київ є містом", Some("russian")), None, "letters that Russian does not have");
        assert_eq!(of("東京 123", Some("german")), None);
        assert_eq!(of("", Some("german")), None);
    }

    #[test]
    fn names_are_parsed() {
        assert_eq!(Language::all().count(), ROWS.len());
        for language in Language::all() {
            assert_eq!(Language::parse(language.name()), Some(language));
            assert!(
                language.row().1.is_none_or(|code| stop_words::lookup(code).is_some()),
                "{}",
                language.name()
            );
        }
        assert_eq!((Language::parse("simple"), Language::parse("Klingon")), (None, None));
    }
}
