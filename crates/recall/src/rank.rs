//! Ranks texts by the terms that they share with a question.

use hashbrown::HashMap;

use crate::language::Language;
use crate::matcher::{Fit, Matcher};
use crate::terms::{Group, Terms};

/// Weight of a function word of the question, relative to another word.
const FUNCTION_WORD: f32 = 0.1;
/// Terms up to this weight are grammar. Texts that share only such terms are found only if no other
/// text matches.
const GRAMMAR: f32 = 0.2;
/// A text whose score is below this share of the best score is left out.
const LEAST_OF_BEST: f32 = 0.1;

/// A text that may answer the question.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate<'a> {
    pub text: &'a str,
    /// The weight of the text, relative to 1.
    pub weight: f32,
}

/// The indices of the candidates that share a term with the question, best first; ties keep the
/// input order. `assumed` is the language of texts whose words do not identify it; `None`: the most
/// common language of the candidates.
pub fn rank(question: &str, candidates: &[Candidate<'_>], assumed: Option<Language>) -> Vec<usize> {
    let asked = Terms::read(question);
    if asked.is_empty() {
        return Vec::new();
    }
    let texts: Vec<Terms> = candidates.iter().map(|candidate| Terms::read(candidate.text)).collect();
    let assumed = assumed.or_else(|| most_common(&texts));
    let mut question = Question::new(&asked, asked.guess.or(assumed));
    let fits: Vec<Vec<Fit>> = texts.iter().map(|text| question.fits(text, assumed)).collect();
    let rarity = rarities(&fits, question.weights.len());
    let score = |(number, fits): (usize, &Vec<Fit>)| {
        let score: f32 = fits.iter().map(|(term, fit)| question.weights[*term] * rarity[*term] * fit).sum();
        (number, score * candidates[number].weight)
    };
    let mut ranked: Vec<(usize, f32)> =
        fits.iter().enumerate().map(score).filter(|(_, score)| *score > 0.0).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let says_something =
        |number: usize| fits[number].iter().any(|(term, _)| question.weights[*term] > GRAMMAR);
    if ranked.iter().any(|(number, _)| says_something(*number)) {
        ranked.retain(|(number, _)| says_something(*number));
    }
    let least = ranked.first().map_or(0.0, |(_, best)| best * LEAST_OF_BEST);
    ranked.into_iter().take_while(|(_, score)| *score >= least).map(|(number, _)| number).collect()
}

/// The most common language among texts whose words identify it.
fn most_common(texts: &[Terms]) -> Option<Language> {
    let mut counts: HashMap<Language, usize> = HashMap::new();
    for language in texts.iter().filter_map(|text| text.guess.or(None)) {
        *counts.entry(language).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(language, count)| (*count, *language)).map(|(language, _)| language)
}

/// The weight of each term of the question: lower if more texts have it.
fn rarities(fits: &[Vec<Fit>], terms: usize) -> Vec<f32> {
    let mut counts = vec![0.0_f32; terms];
    for (term, fit) in fits.iter().flatten() {
        counts[*term] += fit;
    }
    let all = fits.len() as f32;
    counts.into_iter().map(|count| (1.0 + (all - count + 0.5) / (count + 0.5)).ln()).collect()
}

/// A question, prepared for texts of any language.
struct Question {
    /// One weight per term.
    weights: Vec<f32>,
    groups: HashMap<Group, usize>,
    /// Index and word, and whether it is a function word.
    words: Vec<(usize, String, bool)>,
    matchers: HashMap<Option<Language>, Matcher>,
}

impl Question {
    fn new(asked: &Terms, language: Option<Language>) -> Self {
        let mut question =
            Self { weights: Vec::new(), groups: HashMap::new(), words: Vec::new(), matchers: HashMap::new() };
        for (group, weight) in &asked.groups {
            if !question.groups.contains_key(group) {
                question.groups.insert(*group, question.weights.len());
                question.weights.push(*weight);
            }
        }
        let mut words: Vec<String> = asked.words().map(str::to_owned).collect();
        words.sort_unstable();
        words.dedup();
        for word in words {
            let is_function_word = language.is_some_and(|language| language.is_function_word(&word));
            question.words.push((question.weights.len(), word, is_function_word));
            question.weights.push(if is_function_word { FUNCTION_WORD } else { 1.0 });
        }
        question
    }

    /// The terms of the question that a text has, each once.
    fn fits(&mut self, text: &Terms, assumed: Option<Language>) -> Vec<Fit> {
        let mut fits: Vec<Fit> =
            text.groups.iter().filter_map(|(group, _)| Some((*self.groups.get(group)?, 1.0))).collect();
        if !self.words.is_empty() {
            let language = text.guess.or(assumed);
            let words = &self.words;
            let matcher = self.matchers.entry(language).or_insert_with(|| Matcher::new(language, words));
            for word in text.words() {
                fits.extend_from_slice(matcher.fits(word));
            }
        }
        fits.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
        fits.dedup_by_key(|(term, _)| *term);
        fits
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranked<'a>(question: &str, texts: &[&'a str]) -> Vec<&'a str> {
        let candidates: Vec<Candidate<'_>> =
            texts.iter().map(|text| Candidate { text, weight: 1.0 }).collect();
        rank(question, &candidates, None).into_iter().map(|number| texts[number]).collect()
    }

    #[test]
    fn a_rare_word_counts_more_than_two_that_many_have() {
        let texts = ["Das Boot ist im Hof", "Das Rad ist im Hof", "Das Zelt ist im Hof", "Ein Kanu"];
        assert_eq!(ranked("Ist das Kanu im Hof?", &texts)[0], "Ein Kanu");
        assert_eq!(ranked("Welche Boote?", &texts), ["Das Boot ist im Hof"]);
        assert_eq!(ranked("", &texts), [""; 0]);
        assert_eq!(ranked("Xylophone", &texts), [""; 0]);
        assert_eq!(ranked("Boot", &[]), [""; 0]);
    }

    #[test]
    fn function_words_find_nothing_where_another_word_does() {
        let texts = ["Das Boot ist im Hof", "Das Rad ist zu", "Ein Kanu"];
        assert_eq!(ranked("Ist das Boot zu?", &texts), ["Das Boot ist im Hof"]);
        assert_eq!(ranked("Das im Sommer, und zu?", &texts)[..1], ["Das Boot ist im Hof"]);
    }

    #[test]
    fn texts_of_several_languages_are_ranked_together() {
        let texts = [
            "The user has two dogs and they run a lot",
            "Der Nutzer hat eine Regenjacke für den Hund",
            "У пользователя есть собака и кошка",
            "ユーザーは犬を飼っています",
        ];
        assert_eq!(ranked("Does my dog like running?", &texts), [texts[0]]);
        assert_eq!(ranked("Wo ist die Jacke?", &texts), [texts[1]]);
        assert_eq!(ranked("Чем кормить собак?", &texts), [texts[2]]);
        assert_eq!(ranked("犬の散歩", &texts), [texts[3]]);
    }

    #[test]
    fn texts_of_more_weight_and_earlier_ones_come_first() {
        let texts = ["Likes tea", "Drinks tea", "Sells tea"];
        assert_eq!(ranked("tea", &texts), texts);
        let weighed =
            [("Likes tea", 0.5), ("Drinks tea", 1.0)].map(|(text, weight)| Candidate { text, weight });
        assert_eq!(rank("tea", &weighed, None), [1, 0]);
    }

    proptest! {
        #[test]
        fn each_candidate_is_ranked_once_at_most(question in "\\PC{0,40}", texts in prop::collection::vec("\\PC{0,40}", 0..12)) {
            let candidates: Vec<Candidate<'_>> = texts.iter().map(|text| Candidate { text, weight: 1.0 }).collect();
            let ranked = rank(&question, &candidates, None);
            let mut numbers = ranked.clone();
            numbers.sort_unstable();
            numbers.dedup();
            prop_assert!(numbers.len() == ranked.len() && numbers.iter().all(|number| *number < texts.len()));
            prop_assert_eq!(rank(&question, &candidates, None), ranked);
        }

        /// A text must be found by its own words and groups of letters, whatever these are.
        #[test]
        fn a_text_is_found_by_its_own_words(text in "[a-zа-яぁ-ん一-龥가-힣ก-ฮ0-9]{3,12}") {
            let candidates = [Candidate { text: &text, weight: 1.0 }];
            prop_assert_eq!(rank(&text, &candidates, None), [0]);
        }
    }
}
