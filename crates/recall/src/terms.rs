//! The compared terms of a text: words, and overlapping groups of letters in scripts without spaces
//! or with attached particles.

use std::ops::Range;
use std::sync::LazyLock;

use hashbrown::HashSet;
use unicode_normalization::char::is_combining_mark;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfkc_quick};

use crate::language::Guess;

/// The terms of a text, including repetitions.
#[derive(Debug, Default)]
pub(crate) struct Terms {
    /// The text in lower case.
    text: String,
    words: Vec<Range<usize>>,
    /// Groups of letters of scripts without spaces, with their weights relative to a word.
    pub(crate) groups: Vec<(Group, f32)>,
    /// The language that the words indicate.
    pub(crate) guess: Guess,
}

/// A group of at most three letters, 21 bits each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Group(u64);

/// Groups of letters that are Chinese function words.
static FUNCTION_GROUPS: LazyLock<HashSet<Group>> = LazyLock::new(|| {
    let words = stop_words::lookup("zh").unwrap_or_default().iter();
    words
        .map(|word| word.chars().collect::<Vec<_>>())
        .filter(|word| word.len() <= 2)
        .map(|word| Group::of(&word))
        .collect()
});

/// The way in which a script is split into terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Segmentation {
    Words,
    /// Chinese and Japanese characters.
    Han,
    Hiragana,
    Katakana,
    /// Korean, which is split at spaces, but has particles attached to words.
    Hangul,
    /// Thai, Lao, Burmese and Khmer.
    Unspaced,
    /// A character between two terms.
    Nowhere,
}

impl Terms {
    pub(crate) fn read(text: &str) -> Self {
        let text = match is_nfkc_quick(text.chars()) {
            IsNormalized::Yes => text.to_lowercase(),
            _ => text.nfkc().collect::<String>().to_lowercase(),
        };
        let mut terms = Self::default();
        let (mut letters, mut cuts, mut begin): (Vec<char>, Vec<Segmentation>, usize) =
            (Vec::new(), Vec::new(), 0);
        let mut last = Segmentation::Nowhere;
        for (at, letter) in text.char_indices() {
            let cut = match Segmentation::of(letter) {
                // An accent is part of its letter.
                Segmentation::Nowhere if is_combining_mark(letter) => last,
                cut => cut,
            };
            if cut.family() != last.family() {
                terms.take(begin..at, last, &letters, &cuts);
                letters.clear();
                cuts.clear();
                begin = at;
            }
            if !matches!(cut, Segmentation::Words | Segmentation::Nowhere) {
                letters.push(letter);
                cuts.push(cut);
            }
            last = cut;
        }
        terms.take(begin..text.len(), last, &letters, &cuts);
        terms.text = text;
        terms.guess = Guess::of(terms.words());
        terms
    }

    /// Words of scripts with spaces, with their accents.
    pub(crate) fn words(&self) -> impl Iterator<Item = &str> {
        self.words.iter().map(|range| &self.text[range.clone()])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_empty() && self.groups.is_empty()
    }

    fn take(&mut self, range: Range<usize>, cut: Segmentation, run: &[char], cuts: &[Segmentation]) {
        match cut {
            Segmentation::Nowhere => {}
            Segmentation::Hiragana | Segmentation::Katakana | Segmentation::Unspaced if run.len() == 1 => {
                self.group(run, 0.2)
            }
            Segmentation::Words => self.words.push(range),
            Segmentation::Hangul => {
                // The first syllable identifies words of one syllable, whatever particle follows
                // it.
                self.group(&['^', run[0]], 0.4);
                self.groups_of(run, 2, 1.0);
            }
            Segmentation::Unspaced => {
                self.groups_of(run, 2, 0.2);
                self.groups_of(run, 3, 1.0);
            }
            Segmentation::Han | Segmentation::Hiragana | Segmentation::Katakana => {
                self.take_chinese_or_japanese(run, cuts)
            }
        }
    }

    fn take_chinese_or_japanese(&mut self, run: &[char], cuts: &[Segmentation]) {
        for (letter, _) in run.iter().zip(cuts).filter(|(_, cut)| **cut == Segmentation::Han) {
            self.group(&[*letter], 0.5);
        }
        for (pair, cuts) in run.windows(2).zip(cuts.windows(2)) {
            // Hiragana is mostly grammar, which says little about the meaning.
            let weight = match (cuts[0], cuts[1]) {
                (Segmentation::Hiragana, Segmentation::Hiragana) => 0.3,
                (Segmentation::Katakana, Segmentation::Hiragana)
                | (Segmentation::Hiragana, Segmentation::Katakana | Segmentation::Han) => 0.2,
                (Segmentation::Han, Segmentation::Hiragana) => 0.5,
                _ => 1.0,
            };
            self.group(pair, weight);
        }
    }

    fn groups_of(&mut self, run: &[char], letters: usize, weight: f32) {
        for group in run.windows(letters) {
            self.group(group, weight);
        }
    }

    fn group(&mut self, letters: &[char], weight: f32) {
        let group = Group::of(letters);
        let is_function_word = FUNCTION_GROUPS.contains(&group);
        self.groups.push((group, if is_function_word { weight * 0.2 } else { weight }));
    }
}

impl Group {
    fn of(letters: &[char]) -> Self {
        Self(letters.iter().fold(0, |group, letter| group << 21 | u64::from(u32::from(*letter))))
    }
}

impl Segmentation {
    fn of(letter: char) -> Self {
        match letter {
            letter if letter.is_ascii() => {
                if letter.is_ascii_alphanumeric() {
                    Self::Words
                } else {
                    Self::Nowhere
                }
            }
            '\u{3041}'..='\u{3096}' | '\u{309d}'..='\u{309f}' => Self::Hiragana,
            '\u{30a1}'..='\u{30fa}' | '\u{30fc}'..='\u{30ff}' | '\u{31f0}'..='\u{31ff}' => Self::Katakana,
            '\u{3005}'
            | '\u{3007}'
            | '\u{3400}'..='\u{4dbf}'
            | '\u{4e00}'..='\u{9fff}'
            | '\u{f900}'..='\u{faff}' => Self::Han,
            '\u{20000}'..='\u{3ffff}' => Self::Han,
            '\u{ac00}'..='\u{d7a3}' => Self::Hangul,
            // Signs that repeat or abbreviate the preceding text.
            '\u{e2f}' | '\u{e46}' | '\u{e4f}' | '\u{e5a}' | '\u{e5b}' => Self::Nowhere,
            '\u{e01}'..='\u{eff}' | '\u{1000}'..='\u{1049}' | '\u{1050}'..='\u{109f}' => Self::Unspaced,
            '\u{1780}'..='\u{17d3}' | '\u{17e0}'..='\u{17e9}' => Self::Unspaced,
            letter if letter.is_alphanumeric() => Self::Words,
            _ => Self::Nowhere,
        }
    }

    /// The representative of scripts that are split together, because Japanese words mix scripts.
    fn family(self) -> Self {
        match self {
            Self::Hiragana | Self::Katakana => Self::Han,
            other => other,
        }
    }
}

/// The letters of a word without accents. Different spellings of one sound are unified.
pub(crate) fn folded(word: &str) -> Vec<char> {
    if word.is_ascii() {
        return word.chars().collect();
    }
    let mut letters = Vec::with_capacity(word.len());
    for letter in word.nfd().filter(|letter| !is_accent(*letter)) {
        match letter {
            'ß' => letters.extend(['s', 's']),
            'æ' => letters.extend(['a', 'e']),
            'œ' => letters.extend(['o', 'e']),
            'ø' => letters.push('o'),
            'ı' => letters.push('i'),
            'ł' => letters.push('l'),
            'đ' => letters.push('d'),
            // Arabic: forms of alef, and letters that are often written for another one.
            'ٱ' => letters.push('ا'),
            'ى' => letters.push('ي'),
            'ة' => letters.push('ه'),
            'ς' => letters.push('σ'),
            other => letters.push(other),
        }
    }
    letters
}

/// True for optional marks of Latin, Greek, Cyrillic, Hebrew and Arabic letters. Marks of Indic
/// scripts are vowels, so they are not optional.
fn is_accent(letter: char) -> bool {
    matches!(letter, '\u{300}'..='\u{36f}' | '\u{591}'..='\u{5c7}' | '\u{610}'..='\u{61a}' | '\u{640}' | '\u{64b}'..='\u{65f}' | '\u{670}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        Terms::read(text).words().map(str::to_owned).collect()
    }

    fn groups(text: &str) -> Vec<Group> {
        Terms::read(text).groups.into_iter().map(|(group, _)| group).collect()
    }

    fn group(letters: &str) -> Group {
        Group::of(&letters.chars().collect::<Vec<_>>())
    }

    fn all(groups: &[&str]) -> Vec<Group> {
        groups.iter().map(|letters| group(letters)).collect()
    }

    #[test]
    fn scripts_with_spaces_are_cut_into_words() {
        assert_eq!(words("O'Neil's café, at 6:42!"), ["o", "neil", "s", "café", "at", "6", "42"]);
        assert_eq!(words("ＡＢＣ Straße"), ["abc", "straße"], "wide letters are the same");
        assert_eq!(words("e\u{301}te\u{301}"), ["été"]);
        assert_eq!(
            words("उपयोगकर्ता को चाय"),
            ["उपयोगकर्ता", "को", "चाय"],
            "vowel signs belong to their letters"
        );
        assert_eq!((words("… \u{301} 'n"), groups("")), (vec!["n".to_owned()], Vec::new()));
    }

    #[test]
    fn other_scripts_are_cut_into_groups_of_letters() {
        assert_eq!(groups("我的狗"), all(&["我", "的", "狗", "我的", "的狗"]));
        assert_eq!(groups("犬のポチ"), all(&["犬", "犬の", "のポ", "ポチ"]));
        assert_eq!(groups("ﾎﾟﾁ"), all(&["ポチ"]), "narrow letters are the same");
        assert_eq!(groups("딸의 차"), all(&["^딸", "딸의", "^차"]));
        assert_eq!(groups("หมา"), all(&["หม", "มา", "หมา"]));
        let mixed = Terms::read("iPhoneを買う");
        assert_eq!(mixed.words().collect::<Vec<_>>(), ["iphone"]);
        assert!(mixed.groups.iter().any(|(of, _)| *of == group("買う")));
    }

    #[test]
    fn grammar_says_less_than_what_is_meant() {
        let weight = |text: &str, letters: &str| {
            Terms::read(text)
                .groups
                .into_iter()
                .find(|(of, _)| *of == group(letters))
                .map(|(_, weight)| weight)
                .unwrap()
        };
        assert!(weight("紅茶です", "紅茶") > 3.0 * weight("紅茶です", "です"));
        assert!(weight("什么花生", "花生") > 3.0 * weight("什么花生", "什么"));
    }

    #[test]
    fn accents_may_be_left_out() {
        for (word, plain) in [("ärzte", "arzte"), ("straße", "strasse"), ("ёлка", "елка"), ("łódź", "lodz")]
        {
            assert_eq!(folded(word), plain.chars().collect::<Vec<_>>(), "{word}");
        }
        assert_eq!(folded("قَهْوَة"), folded("قهوه"));
        assert_eq!(
            folded("चाय"),
            "चाय".chars().collect::<Vec<_>>(),
            "vowels of other scripts are no accents"
        );
    }
}
