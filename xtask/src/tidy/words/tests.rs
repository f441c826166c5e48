use super::*;

fn found(path: &str, text: &str) -> Vec<(usize, &'static str)> {
    let file = SourceFile { path: path.to_owned(), text: text.to_owned() };
    check(&file).into_iter().chain(test_names(&file)).map(|it| (it.line, it.rule)).collect()
}

const CLEAN: &str = "crates/devservices/src/a.rs";

#[test]
fn each_word_is_found_in_each_kind_of_place() {
    for (word, _) in WORDS {
        let capital = word[..1].to_uppercase() + &word[1..];
        let shouted = word.to_uppercase();
        let places = [
            format!("struct {capital}Owner;"),
            format!("enum A {{ Of{capital} }}"),
            format!("fn open_{word}() {{}}"),
            format!("    {word}_count: usize,"),
            format!("const {shouted}: u8 = 1;"),
            format!("counter!(\"antiphon_worker_{word}_total\");"),
            format!("// {capital} was here"),
            format!("/// what {word} has"),
            format!("let text = \"to {word}\";"),
        ];
        for place in places {
            assert_eq!(found(CLEAN, &place), [(1, "words")], "{place}");
        }
        assert_eq!(found("crates/devservices/README.md", &format!("# The {word}\n")), [(1, "words")]);
        assert_eq!(found(&format!("crates/devservices/src/{word}.rs"), ""), [(1, "words")]);
    }
}

#[test]
fn return_words_are_found_in_names_alone() {
    for (word, _) in NAMES {
        assert_eq!(found(CLEAN, &format!("let {word} = 1;")), [(1, "words")]);
        assert_eq!(found(CLEAN, &format!("pub(crate) fn {word}_all() {{}}")), [(1, "words")]);
        assert_eq!(found(CLEAN, &format!("// as {word} before")), []);
    }
}

#[test]
fn longer_words_are_not_found() {
    let text = "the hero knows this chimney, an embedded background, planes and seating";
    assert_eq!(found(CLEAN, text), []);
}

#[test]
fn test_names_longer_than_sixty_are_found() {
    let test = |name: &str| format!("#[tokio::test(flavor = \"multi_thread\")]\nasync fn {name}() {{}}\n");
    assert_eq!(found(CLEAN, &test(&"x".repeat(60))), []);
    assert_eq!(found(CLEAN, &test(&"x".repeat(61))), [(2, "test-name")]);
    assert_eq!(found(CLEAN, &format!("fn {}() {{}}\n", "x".repeat(61))), []);
}
