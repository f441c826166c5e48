//! Finds the words of a question that match a word of a text, with a score for each.

use hashbrown::HashMap;
use rust_stemmers::Stemmer;

use crate::language::Language;
use crate::terms::folded;

/// Minimum number of letters that two different words must share.
const LEAST_COMMON: usize = 4;
/// Number of letters by which candidates for a match are looked up.
const KEY: usize = 3;
/// Maximum number of letters in which the endings of inflected forms may differ.
const LONGEST_ENDING: usize = 3;
/// Maximum length of a word for which a stem shorter than the lookup key is allowed.
const LONGEST_SHORT: usize = 5;
/// Minimum score of a word that contains the other one.
const LEAST_OF_PART: f32 = 0.4;
/// Score of two forms of one word.
const SAME_STEM: f32 = 0.95;

/// A match with a word of the question: its index and a score from 0 to 1.
pub(crate) type Fit = (usize, f32);

/// The words of a question, prepared for texts of one language.
pub(crate) struct Matcher {
    stemmer: Option<Stemmer>,
    /// True if the language writes compounds as one word.
    compounds: bool,
    asked: Vec<Word>,
    /// Indices of the question's words, by the whole word and by its stem.
    whole: HashMap<Vec<char>, Vec<usize>>,
    /// By any three letters: the words with these letters, and the place of the letters in them.
    parts: HashMap<[char; KEY], Vec<(usize, usize)>>,
    /// Cached matches of earlier words.
    known: HashMap<String, Vec<Fit>>,
}

struct Word {
    number: usize,
    letters: Vec<char>,
    stem: Vec<char>,
    /// True if the word is a function word, which matches only itself.
    is_function_word: bool,
}

impl Matcher {
    /// Prepares the words of a question. `words` has their indices and whether they are function
    /// words of its language.
    pub(crate) fn new(language: Option<Language>, words: &[(usize, String, bool)]) -> Self {
        let stemmer = language.and_then(Language::stemmer);
        let asked: Vec<Word> = words
            .iter()
            .map(|(number, word, is_function_word)| Word {
                number: *number,
                letters: folded(word),
                stem: stem(stemmer.as_ref(), word),
                is_function_word: *is_function_word,
            })
            .collect();
        let (mut whole, mut parts): (HashMap<_, Vec<_>>, HashMap<_, Vec<_>>) =
            (HashMap::new(), HashMap::new());
        for (at, word) in asked.iter().enumerate() {
            whole.entry(word.letters.clone()).or_default().push(at);
            if word.is_function_word {
                continue;
            }
            if word.stem != word.letters {
                whole.entry(word.stem.clone()).or_default().push(at);
            }
            for (place, part) in word.letters.windows(KEY).enumerate() {
                if let Ok(part) = part.try_into() {
                    parts.entry(part).or_default().push((at, place));
                }
            }
        }
        let compounds = language.is_some_and(Language::compounds);
        Self { stemmer, compounds, asked, whole, parts, known: HashMap::new() }
    }

    /// The words of the question that this word matches.
    pub(crate) fn fits(&mut self, word: &str) -> &[Fit] {
        if !self.known.contains_key(word) {
            let fits = self.compare(word);
            self.known.insert(word.to_owned(), fits);
        }
        self.known.get(word).map_or(&[], Vec::as_slice)
    }

    fn compare(&self, word: &str) -> Vec<Fit> {
        let letters = folded(word);
        // Stemming is the slowest step. If a long word's first letters occur in no word of the
        // question, its stem cannot match.
        let may_fit = letters.len() <= LONGEST_SHORT
            || letters.first_chunk().is_some_and(|beginning| self.parts.contains_key(beginning));
        let stem = if may_fit { stem(self.stemmer.as_ref(), word) } else { letters.clone() };
        let mut fits: Vec<Fit> = Vec::new();
        let mut note = |number: usize, fit: f32| match fits.iter_mut().find(|(known, _)| *known == number) {
            Some((_, known)) => *known = known.max(fit),
            None if fit > 0.0 => fits.push((number, fit)),
            None => {}
        };
        for at in self.whole.get(&letters).into_iter().chain(self.whole.get(&stem)).flatten() {
            let asked = &self.asked[*at];
            if asked.letters == letters {
                note(asked.number, 1.0);
            } else if !asked.is_function_word && asked.stem == stem {
                note(asked.number, SAME_STEM);
            }
        }
        for (place, part) in letters.windows(KEY).enumerate() {
            let Ok(part) = <[char; KEY]>::try_from(part) else { continue };
            for (at, place_asked) in self.parts.get(&part).into_iter().flatten() {
                let asked = &self.asked[*at];
                note(
                    asked.number,
                    fit_of_parts(
                        (&asked.letters, &asked.stem, *place_asked),
                        (&letters, &stem, place),
                        self.compounds,
                    ),
                );
            }
        }
        fits
    }
}

/// A word, its stem, and a place in the word.
type Placed<'a> = (&'a [char], &'a [char], usize);

/// The score of two words that have the same letters at these places.
fn fit_of_parts(a: Placed<'_>, b: Placed<'_>, compounds: bool) -> f32 {
    let part = || LEAST_OF_PART + (1.0 - LEAST_OF_PART) * share(a.0.len().min(b.0.len()), a.0, b.0);
    match (a.2, b.2) {
        (0, 0) if is_beginning(a, b) || is_beginning(b, a) => part(),
        (0, 0) => fit_of_forms(a.1, b.1).max(fit_of_forms(a.0, b.0)),
        (0, _) if is_part(b, a, compounds) => part(),
        (_, 0) if is_part(a, b, compounds) => part(),
        _ => 0.0,
    }
}

/// The part of a word that is searched for in other words. It is the stem, if that is long enough
/// and is not another word.
fn core<'a>((letters, stem, _): Placed<'a>) -> &'a [char] {
    if letters.starts_with(stem) && stem.len() >= LEAST_COMMON { stem } else { letters }
}

fn is_beginning(of: Placed<'_>, beginning: Placed<'_>) -> bool {
    core(beginning).len() >= LEAST_COMMON && of.0.starts_with(core(beginning))
}

/// True if a word contains another one from this place on. A part of three letters counts only at
/// the end of a compound, like `Rad` in `Lastenrad`.
fn is_part(of: Placed<'_>, part: Placed<'_>, compounds: bool) -> bool {
    let rest = &of.0[of.2..];
    let (letters, stem, _) = part;
    let is_head = |word: &[char]| word.len() == KEY && rest == word;
    core(part).len() >= LEAST_COMMON && rest.starts_with(core(part))
        || compounds && of.2 >= KEY && (is_head(letters) || letters.starts_with(stem) && is_head(stem))
}

/// The score of two words that differ only in their endings. They may be forms of one word in a
/// language that is unknown or has no rule for them.
fn fit_of_forms(a: &[char], b: &[char]) -> f32 {
    let common = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let ending = a.len().max(b.len()) - common;
    // Slavic words also change in the letters before their endings.
    let (least, longest) =
        if common < LEAST_COMMON && is_cyrillic(a) { (3, 2) } else { (LEAST_COMMON, LONGEST_ENDING) };
    let is_plural = |one: &[char], many: &[char]| one.len() >= KEY && many.strip_prefix(one) == Some(&['s']);
    if common >= least && ending <= longest || is_plural(a, b) || is_plural(b, a) {
        share(common, a, b)
    } else {
        0.0
    }
}

fn share(common: usize, a: &[char], b: &[char]) -> f32 {
    common as f32 / a.len().max(b.len()) as f32
}

fn is_cyrillic(word: &[char]) -> bool {
    word.first().is_some_and(|letter| ('\u{400}'..='\u{52f}').contains(letter))
}

fn stem(stemmer: Option<&Stemmer>, word: &str) -> Vec<char> {
    stemmer.map_or_else(|| folded(word), |stemmer| folded(&stemmer.stem(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The score of a word in a text if the question has only one word.
    fn fit(language: &str, asked: &str, word: &str) -> f32 {
        let language = Language::parse(language);
        assert!(language.is_some());
        Matcher::new(language, &[(0, asked.to_owned(), false)])
            .fits(word)
            .first()
            .map_or(0.0, |(_, fit)| *fit)
    }

    #[test]
    fn forms_of_one_word_fit_nearly_as_well_as_itself() {
        assert_eq!(fit("english", "dogs", "dogs"), 1.0);
        for (language, asked, word) in [
            ("english", "dogs", "dog"),
            ("english", "running", "runs"),
            ("german", "höfen", "hof"),
            ("russian", "собаку", "собаки"),
            ("russian", "чая", "чай"),
            ("french", "chevaux", "cheval"),
        ] {
            assert!(fit(language, asked, word) >= SAME_STEM, "{asked} {word}");
        }
        // Without a rule or a language, words match if only the endings differ.
        for (language, asked, word) in [
            ("german", "tees", "tee"),
            ("russian", "кошек", "кошки"),
            ("russian", "дочери", "дочь"),
            ("basque", "książki", "książka"),
            ("basque", "kissan", "kissa"),
        ] {
            let fit = fit(language, asked, word);
            assert!(fit > 0.5 && fit < 1.0, "{asked} {word}: {fit}");
        }
    }

    #[test]
    fn a_compound_fits_its_parts_and_they_fit_it() {
        for (asked, word) in [
            ("jacke", "regenjacke"),
            ("jacken", "regenjacke"),
            ("brille", "gleitsichtbrille"),
            ("fahrrad", "fahrradschloss"),
            ("zug", "nachtzug"),
            ("höfe", "bauernhof"),
        ] {
            for (one, other) in [(asked, word), (word, asked)] {
                let fit = fit("german", one, other);
                assert!(fit > LEAST_OF_PART && fit < 1.0, "{one} {other}: {fit}");
            }
        }
    }

    #[test]
    fn other_words_do_not_fit() {
        for (language, asked, word) in [
            ("german", "fahrt", "fahrradschloss"),
            ("german", "boo", "boot"),
            ("german", "radio", "rad"),
            ("german", "rad", "radieschen"),
            ("english", "art", "party"),
            ("english", "ear", "year"),
            ("english", "cat", "category"),
            ("russian", "рубль", "рука"),
        ] {
            assert_eq!(fit(language, asked, word), 0.0, "{asked} {word}");
        }
    }

    #[test]
    fn function_words_fit_themselves_alone() {
        let mut matcher = Matcher::new(Language::parse("german"), &[(0, "kann".to_owned(), true)]);
        assert_eq!(matcher.fits("kann"), [(0, 1.0)]);
        assert_eq!(matcher.fits("kannte"), []);
    }
}
