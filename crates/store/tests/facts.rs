//! Facts of agents: written with memory tasks, searched, corrected and forgotten.

use std::time::Duration;

use model::{AgentId, CommandId, TaskKind, TurnId};
use serde_json::{Value, json};
use store::{
    CleanupKind, CleanupLimit, Committed, ErasedOwner, FactFilter, FactRow, FactScope, NewFact, Store,
};

use crate::fixture::{Database, Owner, metadata, thread};
use crate::values::{agent, finishes};

/// All facts, including superseded ones.
const ALL: FactFilter = FactFilter { scope: None, with_superseded: true, limit: 5_000 };

fn queue() -> AgentId {
    agent("ann").queue_of(TaskKind::Memory)
}

/// Inserts a thread, with this user if one is given.
async fn talk(database: &Database, name: &str, user: Option<&str>) {
    let said = user.map_or(json!({}), |user| json!({ "user_id": user }));
    let bucket = thread(name).bucket().get();
    database
        .execute(&format!(
            "INSERT INTO threads (bucket, thread_id, agent_id, metadata) VALUES ({bucket}, '{name}', 'ann', '{said}')"
        ))
        .await;
}

/// Commits the turn of a memory task about an answer in a thread; `said` is the answer of that
/// turn.
async fn note(owner: &Owner, about: &str, answer: &str, said: &str, position: i64) {
    let thread = queue().thread();
    let turn = TurnId::foreground(&thread, &format!("n{position}")).unwrap();
    let mut write = finishes(thread.as_str(), &turn, 0, position, None);
    write.messages[0].metadata = metadata(json!({"thread_id": about, "assistant_message_id": answer}));
    write.messages.last_mut().unwrap().content = said.to_owned();
    let mut commit = owner.empty();
    commit.turns = vec![write];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
}

fn facts(texts: &[&str]) -> String {
    let facts: Vec<Value> =
        texts.iter().map(|text| json!({"text": text, "kind": "note", "confidence": 0.8})).collect();
    json!({ "facts": facts }).to_string()
}

fn texts(rows: &[FactRow]) -> Vec<&str> {
    let mut texts: Vec<&str> = rows.iter().map(|row| row.text.as_str()).collect();
    texts.sort_unstable();
    texts
}

async fn found(store: &Store, name: &str, text: &str) -> Vec<FactRow> {
    let found = store.search_facts(&agent("ann"), &thread(name), text, None, 10).await.unwrap();
    found.into_iter().map(|found| found.fact).collect()
}

fn given(id: &str, scope: Option<FactScope>, text: &str, supersedes: Option<&str>) -> NewFact {
    let supersedes = supersedes.map(str::to_owned);
    NewFact { id: id.to_owned(), scope, text: text.to_owned(), kind: None, confidence: None, supersedes }
}

async fn add(store: &Store, new: NewFact) -> Option<FactRow> {
    let command = CommandId::parse(&new.id).unwrap();
    store.add_fact(&agent("ann"), &new, &command, "ada").await.unwrap()
}

#[tokio::test]
async fn facts_are_written_once_and_found_by_their_user_alone() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    for (name, user) in [("t1", Some("u")), ("t2", Some("u")), ("t3", Some("v")), ("t4", None), ("t5", None)]
    {
        talk(&database, name, user).await;
    }
    note(&owner, "t1", "m1", &facts(&["Lives in Bern", "Has a dog's bowl"]), 10).await;
    // The first turn is written again by a redelivered task. Then other turns find the same facts,
    // and one turn is about a thread that no longer exists.
    note(&owner, "t1", "m1", &facts(&["Lives in Basel", "Has a cat"]), 20).await;
    note(&owner, "t2", "m2", &facts(&["lives in bern", "Likes tea", "likes TEA"]), 30).await;
    note(&owner, "gone", "m3", &facts(&["Was erased"]), 40).await;
    note(&owner, "t4", "m4", &facts(&["Lives in Bonn"]), 50).await;
    note(&owner, "t5", "m5", "I have noted nothing.", 60).await;
    let all = store.facts(&agent("ann"), &ALL).await.unwrap();
    assert_eq!(texts(&all), ["Has a dog's bowl", "Likes tea", "Lives in Bern", "Lives in Bonn"]);
    let bern = all.iter().find(|fact| fact.text == "Lives in Bern").unwrap();
    assert_eq!((bern.id.as_str(), bern.assistant_message_id.as_deref()), ("m1-f0", Some("m1")));
    assert_eq!((&bern.scope, &bern.thread), (&FactScope::User("u".to_owned()), &Some(thread("t1"))));

    assert_eq!(
        texts(&found(&store, "t2", "Where do I live? It is not Bern, is it?").await),
        ["Lives in Bern"]
    );
    assert_eq!(texts(&found(&store, "t4", "lives bern bonn").await), ["Lives in Bonn"]);
    for other in ["t3", "t5", "none"] {
        assert_eq!(found(&store, other, "lives in bern").await, [], "{other}");
    }
    // Operators of the search syntax have no meaning in a message.
    assert_eq!(texts(&found(&store, "t1", r"a dog's & | ! ( :* \ bowl").await), ["Has a dog's bowl"]);
    assert_eq!(found(&store, "t1", "").await, []);
    assert_eq!(found(&store, "t1", " ' \\ \0 ").await, []);
}

#[tokio::test]
async fn found_facts_take_the_place_of_those_that_they_name() {
    let (database, store) = Database::new(1).await;
    const CURRENT: FactFilter = FactFilter { with_superseded: false, ..ALL };
    let owner = Owner::new(&store, "a").await;
    for (name, user) in [("t1", Some("u")), ("t2", Some("u")), ("t3", Some("v"))] {
        talk(&database, name, user).await;
    }
    note(&owner, "t1", "m1", &facts(&["Lives in Bern", "Has a dog", "Works in Bern"]), 10).await;
    note(&owner, "t3", "m3", &facts(&["Lives in Bonn"]), 20).await;
    let newer = |text: &str, supersedes: &[&str]| {
        let fact = json!({"text": text, "kind": "note", "confidence": 0.8, "supersedes": supersedes});
        json!({ "facts": [fact] }).to_string()
    };
    // The new fact comes from another thread of the same user. Facts of another user stay, and
    // unknown ids are no error.
    note(&owner, "t2", "m2", &newer("Moved to Oslo", &["m1-f0", "m1-f2", "m3-f0", "m9-f9"]), 30).await;
    let left = store.facts(&agent("ann"), &CURRENT).await.unwrap();
    assert_eq!(texts(&left), ["Has a dog", "Lives in Bonn", "Moved to Oslo"]);
    assert_eq!(found(&store, "t1", "lives in bern").await, []);
    let all = store.facts(&agent("ann"), &ALL).await.unwrap();
    let replaced: Vec<_> = all.iter().filter_map(|fact| fact.superseded_by.as_deref()).collect();
    assert_eq!((all.len(), replaced), (5, vec!["m2-f0"; 2]));
    // A fact that is already stored in the same words is not stored again and supersedes nothing.
    note(&owner, "t1", "m4", &newer("moved to oslo", &["m1-f1"]), 40).await;
    assert_eq!(
        texts(&store.facts(&agent("ann"), &CURRENT).await.unwrap()),
        ["Has a dog", "Lives in Bonn", "Moved to Oslo"]
    );
    // A superseded fact is not superseded again.
    note(&owner, "t1", "m5", &newer("Lives in Rome", &["m1-f0", "m2-f0"]), 50).await;
    let all = store.facts(&agent("ann"), &ALL).await.unwrap();
    let by = |id: &str| all.iter().find(|fact| fact.id == id).unwrap().superseded_by.clone();
    assert_eq!((by("m1-f0").as_deref(), by("m2-f0").as_deref()), (Some("m2-f0"), Some("m5-f0")));
}

#[tokio::test]
async fn the_language_of_the_settings_counts() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    talk(&database, "t", None).await;
    let settings = async |language: &str| {
        let bucket = model::Bucket::of_key("ann").get();
        database
            .execute(&format!(
                "INSERT INTO agent_settings (bucket, agent_id, workflow, settings) VALUES ({bucket}, 'ann', 'w', '{{\"memory_language\": \"{language}\"}}')
                 ON CONFLICT (bucket, agent_id) DO UPDATE SET settings = excluded.settings"
            ))
            .await;
    };
    settings("english").await;
    note(&owner, "t", "m", &facts(&["She runs marathons"]), 10).await;
    assert_eq!(texts(&found(&store, "t", "the run of a marathon").await), ["She runs marathons"]);
    assert_eq!(found(&store, "t", "the of a").await, [], "words without meaning");
    // An unknown language counts as no language and does not prevent writing.
    settings("klingon").await;
    note(&owner, "t", "n", &facts(&["Heghlu meH"]), 20).await;
    assert_eq!(texts(&found(&store, "t", "heghlu").await), ["Heghlu meH"]);
}

#[tokio::test]
async fn rare_words_come_first_and_compounds_fit() {
    let (database, store) = Database::new(1).await;
    talk(&database, "t", Some("u")).await;
    let scope = || Some(FactScope::User("u".to_owned()));
    let known = [
        "Das Rad ist im Hof",
        "Das Fahrradschloss ist im Flur",
        "Das Boot ist im See",
        "Das Zelt ist im Keller",
        "Das Buch ist im Regal",
        "O'Neil's ist zu",
    ];
    for (number, text) in known.into_iter().enumerate() {
        add(&store, given(&format!("c{number}"), scope(), text, None)).await.unwrap();
    }
    let best = async |text: &str| found(&store, "t", text).await.first().map(|fact| fact.text.clone());
    // Two words that are common to five facts count less than one word of a single fact.
    assert_eq!(best("Das im Sommer, und zu?").await.as_deref(), Some(known[5]));
    // A word of four letters or more matches a word that it is a prefix of.
    assert_eq!(best("Fahrrad").await.as_deref(), Some(known[1]));
    assert_eq!(best("Fahrradschlosser").await.as_deref(), Some(known[1]));
    assert_eq!((best("Fahrt").await, best("Boo").await, best("Radio").await), (None, None, None));
    assert_eq!(best(r"o'n\eil").await.as_deref(), Some(known[5]));
}

/// Facts of one user in several scripts are found with any language setting of the agent.
#[tokio::test]
async fn facts_of_every_script_are_found() {
    let (database, store) = Database::new(1).await;
    talk(&database, "t", Some("u")).await;
    let pairs = [
        ("犬の名前はポチです。", "犬の名前は何ですか"),
        ("用户对花生过敏。", "我可以吃花生吗"),
        ("사용자는 화요일마다 첼로를 연주한다.", "첼로 연습은 언제야?"),
        ("ผู้ใช้แพ้ถั่วลิสง", "อาหารนี้มีถั่วลิสงไหม"),
        ("Die Nutzerin hat eine gelbe Regenjacke.", "Welche Jacken passen zu Regen?"),
        ("Мать пользователя живёт в Казани.", "Когда поехать к матери?"),
        ("The user rides a touring bike.", "Which bikes are good in winter?"),
        ("يحب المستخدم القهوة العربية.", "أين أشتري قهوة جيدة؟"),
        ("उपयोगकर्ता को चाय पसंद है।", "कौन सी चाय लाऊँ?"),
    ];
    for (number, (fact, _)) in pairs.iter().enumerate() {
        let scope = Some(FactScope::User("u".to_owned()));
        add(&store, given(&format!("s{number}"), scope, fact, None)).await.unwrap();
    }
    for language in ["", "german", "japanese"] {
        let bucket = model::Bucket::of_key("ann").get();
        database
            .execute(&format!(
                "INSERT INTO agent_settings (bucket, agent_id, workflow, settings) VALUES ({bucket}, 'ann', 'w', '{{\"memory_language\": \"{language}\"}}')
                 ON CONFLICT (bucket, agent_id) DO UPDATE SET settings = excluded.settings"
            ))
            .await;
        for (fact, question) in pairs {
            let found = found(&store, "t", question).await;
            assert_eq!(found.first().map(|found| found.text.as_str()), Some(fact), "{question} {language}");
        }
    }
}

#[tokio::test]
async fn a_user_with_few_facts_is_given_all_of_them() {
    let (database, store) = Database::new(1).await;
    for (name, user) in [("t", "u"), ("many", "v")] {
        talk(&database, name, Some(user)).await;
    }
    let known = async |name: &str, text: &str| {
        let found = store.facts_of_turn(&agent("ann"), &thread(name), text, None, 16).await.unwrap();
        found.into_iter().map(|found| found.fact.text).collect::<Vec<_>>()
    };
    let user = |name: &str| Some(FactScope::User(name.to_owned()));
    assert_eq!(known("t", "What is new?").await, Vec::<String>::new());
    for number in 0..16 {
        add(&store, given(&format!("u{number}"), user("u"), &format!("Owns boat {number}"), None))
            .await
            .unwrap();
        add(&store, given(&format!("v{number}"), user("v"), &format!("Owns boat {number}"), None))
            .await
            .unwrap();
    }
    add(&store, given("v16", user("v"), "Owns a kite", None)).await.unwrap();
    let all = known("t", "Is number 7 a good one?").await;
    assert_eq!((all.len(), all[0].as_str(), all[1].as_str()), (16, "Owns boat 7", "Owns boat 15"));
    assert_eq!(known("t", "Tell me a joke!").await.len(), 16);
    assert_eq!(known("many", "Is number 7 a good one?").await, ["Owns boat 7"], "seventeen are not few");
    // Matching facts for all threads come first and do not displace the user's own.
    for number in 0..20 {
        let text = format!("Number {number} of the rules: a joke is short");
        add(&store, given(&format!("a{number}"), Some(FactScope::Agent), &text, None)).await.unwrap();
    }
    let all = known("t", "Tell me a joke!").await;
    let own = all.iter().filter(|text| text.starts_with("Owns boat")).count();
    assert_eq!((all.len(), own), (32, 16), "{all:?}");
    assert!(all[..16].iter().all(|text| text.ends_with("a joke is short")), "{all:?}");
}

/// The ranking knows every language that the settings allow.
#[test]
fn every_language_of_the_settings_is_known() {
    let known: Vec<&str> = recall::Language::all().map(recall::Language::name).collect();
    let names: Vec<&str> = model::MEMORY_LANGUAGES.into_iter().filter(|name| *name != "simple").collect();
    assert_eq!(known, names);
}

#[tokio::test]
async fn a_correction_supersedes_and_forgetting_takes_all() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    talk(&database, "t", Some("u")).await;
    note(&owner, "t", "m", &facts(&["Lives in Bern"]), 10).await;
    let moved = add(&store, given("c1", None, "Lives in Basel", Some("m-f0"))).await.unwrap();
    assert_eq!(
        (&moved.scope, moved.kind.as_str(), moved.confidence),
        (&FactScope::User("u".to_owned()), "note", 0.8)
    );
    assert_eq!(
        add(&store, given("c2", None, "Lives in Bonn", Some("m-f0"))).await,
        None,
        "it has one already"
    );
    assert_eq!(add(&store, given("c3", None, "Lives in Bonn", Some("x"))).await, None);
    assert_eq!(texts(&found(&store, "t", "lives").await), ["Lives in Basel"]);
    let all = store.facts(&agent("ann"), &ALL).await.unwrap();
    assert_eq!(all.iter().find(|fact| fact.id == "m-f0").unwrap().superseded_by.as_deref(), Some("c1"));
    add(&store, given("c4", Some(FactScope::Agent), "Everyone lives", None)).await.unwrap();
    assert_eq!(texts(&found(&store, "t", "lives").await), ["Everyone lives", "Lives in Basel"]);
    let forget = async |id: &str, command: &str| {
        store.delete_fact(&agent("ann"), id, false, &CommandId::parse(command).unwrap(), "ada").await.unwrap()
    };
    assert!(forget("c1", "d1").await && !forget("c1", "d2").await);
    assert_eq!(texts(&store.facts(&agent("ann"), &ALL).await.unwrap()), ["Everyone lives"]);
    let audit = "SELECT string_agg(action || ' ' || target, ', ' ORDER BY created_at) AS all FROM audit_log";
    let expected = r#"{"all":"change_fact c1, add_fact c4, delete_fact c1"}"#;
    assert_eq!(database.rows(audit).await, [expected]);
}

#[tokio::test]
async fn the_oldest_of_a_scope_go_and_old_ones_by_age() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    talk(&database, "t", Some("u")).await;
    let bucket = queue().thread().bucket().get();
    database
        .execute(&format!(
            "INSERT INTO facts (bucket, agent_id, fact_id, scope, text, kind, confidence, created_at)
             SELECT {bucket}, 'ann', 'o' || n, 'user:u', 'old ' || n, 'note', 1, now() - n * interval '1 day' FROM generate_series(1, 1000) AS n"
        ))
        .await;
    note(&owner, "t", "m", &facts(&["one", "two"]), 10).await;
    note(&owner, "t", "n", &facts(&["three"]), 20).await;
    let rows = store.facts(&agent("ann"), &ALL).await.unwrap();
    let has = |id: &str| rows.iter().any(|row| row.id == id);
    // A statement sees only rows from before the statement.
    assert!(
        (1_000..=1_002).contains(&rows.len()) && has("m-f0") && has("o1") && !has("o1000"),
        "{}",
        rows.len()
    );
    for number in 0..4 {
        let old = if number == 0 { "m-f0".to_owned() } else { format!("c{}", number - 1) };
        let new = given(&format!("c{number}"), None, "one more", Some(&old));
        assert!(add(&store, new).await.is_some());
        let kept = store.facts(&agent("ann"), &ALL).await.unwrap().len();
        assert_eq!(kept, 1_000, "what is superseded counts as well");
    }
    let day = Duration::from_secs(86_400);
    assert_eq!(store.clean_up(CleanupKind::Facts, CleanupLimit::Age(day * 980), 5).await.unwrap(), 5);
    while store.clean_up(CleanupKind::Facts, CleanupLimit::Age(day * 500), 100).await.unwrap() > 0 {}
    let left = store.facts(&agent("ann"), &ALL).await.unwrap();
    assert_eq!(
        left.len(),
        506,
        "499 old ones, whose last is a moment older than its day, and seven new ones"
    );
}

#[tokio::test]
async fn erasing_leaves_no_fact() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    for (name, user) in [("t1", Some("u")), ("t2", Some("u")), ("t3", None)] {
        talk(&database, name, user).await;
    }
    note(&owner, "t1", "m1", &facts(&["of t1"]), 10).await;
    note(&owner, "t2", "m2", &facts(&["of t2"]), 20).await;
    add(&store, given("c1", Some(FactScope::User("u".to_owned())), "given", None)).await.unwrap();
    add(&store, given("c2", Some(FactScope::Thread(thread("t3"))), "of t3", None)).await.unwrap();
    let left = async || {
        let rows = store.facts(&agent("ann"), &ALL).await.unwrap();
        texts(&rows).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    store.mark_erased(&[thread("t1"), thread("t3")], "ada", "run", None).await.unwrap();
    let erased = store.erase_some(&[thread("t1"), thread("t3")]).await.unwrap();
    assert_eq!((erased["facts"], left().await), (2, vec!["given".to_owned(), "of t2".to_owned()]));
    let erased = store.erase_owner(&ErasedOwner::User(None, "u".to_owned())).await.unwrap();
    assert_eq!((erased["facts"], left().await), (2, Vec::new()), "also what was given");
    add(&store, given("c3", Some(FactScope::Agent), "of all", None)).await.unwrap();
    let erased = store.erase_some(&[thread("ann")]).await.unwrap();
    assert_eq!((erased["facts"], left().await), (1, Vec::new()), "with its agent");
}

#[tokio::test]
async fn texts_with_many_words_are_found_as_well() {
    let (database, store) = Database::new(1).await;
    talk(&database, "t", None).await;
    // All characters differ, and each has four bytes: more than an index entry can hold.
    let many: String = (0..330).map(|n| format!("{} ", char::from_u32(0x2_0000 + n).unwrap())).collect();
    let long: String = (0..160).map(|n| format!("w{n} ")).collect();
    for (id, text) in
        [("m", &format!("{many} zebra")), ("l", &format!("{long} zebra")), ("s", &"a zebra".to_owned())]
    {
        assert!(add(&store, given(id, Some(FactScope::Agent), text, None)).await.is_some());
    }
    let in_index =
        "SELECT string_agg(fact_id, ' ' ORDER BY fact_id) AS ids FROM facts WHERE short_text IS NOT NULL";
    assert_eq!(database.rows(in_index).await, [r#"{"ids":"l s"}"#]);
    let mut ids: Vec<String> = found(&store, "t", "zebras").await.into_iter().map(|row| row.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["l", "m", "s"]);
}

#[tokio::test]
async fn a_user_with_too_long_a_name_is_none() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let long: String = (0..4_000u32).map(|n| char::from_u32(0x4E00 + n * 7 % 20_000).unwrap()).collect();
    for name in ["t1", "t2"] {
        talk(&database, name, Some(&long)).await;
    }
    note(&owner, "t1", "m1", &facts(&["Lives in Bern"]), 10).await;
    assert_eq!(texts(&found(&store, "t1", "Bern").await), ["Lives in Bern"]);
    assert_eq!(texts(&found(&store, "t2", "Bern").await), Vec::<&str>::new());
}
