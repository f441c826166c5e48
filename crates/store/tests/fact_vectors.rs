//! Vectors of facts, on a Postgres with pgvector, and the behaviour without it.

use devservices::services::{Postgres, PostgresOptions};
use devservices::tools;
use model::{AgentId, Bucket, CommandId, PartitionCount, TaskKind, Tenant, ThreadId};
use store::{
    CleanupKind, CleanupLimit, ErasedOwner, FactScope, FactToEmbed, FoundFact, NewFact, Store, StoreConfig,
    VectorTables, lay_out_vectors,
};

use crate::fixture::Database;

const MODEL: &str = "ann's model@3";

struct Fixture {
    database: Database,
    store: Store,
    _server: Postgres,
}

impl Fixture {
    /// A database with vectors of [`MODEL`].
    async fn new() -> Self {
        let fixture = Self::without_extension().await;
        fixture.database.execute_as_superuser("CREATE EXTENSION vector").await;
        assert_eq!(fixture.lay_out(MODEL).await, VectorTables::Made);
        fixture
    }

    async fn without_extension() -> Self {
        let bin = tools::postgres_with_vector().unwrap().path;
        let server = Postgres::start(None, &PostgresOptions::new(bin)).unwrap();
        let database = Database::empty_on(server.url()).await;
        store::migrate(&database.url, PartitionCount::new(2).unwrap()).await.unwrap();
        let store = Store::connect(&StoreConfig::new(&database.url)).await.unwrap();
        Self { database, store, _server: server }
    }

    async fn lay_out(&self, vectors_of: &str) -> VectorTables {
        lay_out_vectors(&self.database.url, vectors_of).await.unwrap()
    }

    async fn add(&self, agent: &str, id: &str, scope: FactScope, text: &str, supersedes: Option<&str>) {
        let supersedes = supersedes.map(str::to_owned);
        let scope = supersedes.is_none().then_some(scope);
        let new = NewFact {
            id: id.to_owned(),
            scope,
            text: text.to_owned(),
            kind: None,
            confidence: None,
            supersedes,
        };
        let command = CommandId::parse(id).unwrap();
        let agent = AgentId::parse(agent).unwrap();
        self.store.add_fact(&agent, &new, &command, "ada").await.unwrap().unwrap();
    }

    async fn thread(&self, thread: &ThreadId, user: &str) {
        let bucket = thread.bucket().get();
        self.database
            .execute(&format!(
                "INSERT INTO threads (bucket, thread_id, agent_id, metadata)
                 VALUES ({bucket}, '{thread}', 'ann', '{{\"user_id\": \"{user}\"}}')"
            ))
            .await;
    }

    /// The facts that wait for their vectors, ordered by text.
    async fn waiting(&self) -> Vec<FactToEmbed> {
        let buckets: Vec<Bucket> = (0..model::BUCKETS).map(Bucket::from_number).collect();
        let mut waiting = self.store.facts_to_embed(&buckets, 100).await.unwrap();
        waiting.sort_by(|a, b| a.text.cmp(&b.text));
        waiting
    }

    async fn keep(&self, fact: &FactToEmbed, vector: [f32; 3]) -> u64 {
        self.store.keep_vectors(MODEL, std::slice::from_ref(fact), &[vector.to_vec()]).await.unwrap()
    }

    async fn search(&self, thread: &str, text: &str, vector: &[f32]) -> Vec<FoundFact> {
        let (agent, thread) = (AgentId::parse("ann").unwrap(), ThreadId::parse(thread).unwrap());
        self.store.search_facts(&agent, &thread, text, Some(vector), 4).await.unwrap()
    }

    async fn vectors(&self) -> i64 {
        self.database.number("SELECT count(*) FROM fact_vectors").await
    }
}

fn user(name: &str) -> FactScope {
    FactScope::User(name.to_owned())
}

fn texts(found: &[FoundFact]) -> Vec<&str> {
    found.iter().map(|found| found.fact.text.as_str()).collect()
}

#[tokio::test]
async fn vectors_are_laid_out_for_one_model_at_a_time() {
    let fixture = Fixture::without_extension().await;
    fixture.add("ann", "f0", user("u"), "Likes tea", None).await;
    fixture.add("ann", "f1", user("u"), "Lived in Bern", None).await;
    fixture.add("ann", "f2", user("u"), "Lives in Oslo", Some("f1")).await;
    // The role that the fleet uses is not a superuser.
    let VectorTables::Unavailable(why) = fixture.lay_out(MODEL).await else { panic!("laid out") };
    assert!(why.contains("permission denied"), "{why}");
    assert_eq!(fixture.store.vectors_of().await.unwrap(), None);
    assert_eq!(fixture.waiting().await, []);

    fixture.database.execute_as_superuser("CREATE EXTENSION vector").await;
    let (one, other) = tokio::join!(fixture.lay_out(MODEL), fixture.lay_out(MODEL));
    assert!([&one, &other].contains(&&VectorTables::Made) && [&one, &other].contains(&&VectorTables::Ready));
    assert_eq!(fixture.store.vectors_of().await.unwrap().as_deref(), Some(MODEL));
    let waiting = fixture.waiting().await;
    let texts: Vec<_> = waiting.iter().map(|fact| fact.text.as_str()).collect();
    assert_eq!(texts, ["Likes tea", "Lives in Oslo"]);
    assert_eq!(fixture.keep(&waiting[0], [1.0, 0.0, 0.0]).await, 1);
    assert_eq!(fixture.waiting().await, waiting[1..]);

    // With another model all facts wait again, and a worker with the first model writes nothing.
    assert_eq!(fixture.lay_out("other").await, VectorTables::Made);
    assert_eq!(fixture.waiting().await, waiting);
    assert_eq!(fixture.keep(&waiting[0], [1.0, 0.0, 0.0]).await, 0);
    assert_eq!(fixture.waiting().await, waiting);
    fixture.store.give_up_vector(&waiting[1]).await.unwrap();
    assert_eq!(fixture.waiting().await, waiting[..1]);
}

#[tokio::test]
async fn facts_are_found_by_words_and_vectors_together() {
    let fixture = Fixture::new().await;
    let thread = ThreadId::parse("t").unwrap();
    fixture.thread(&thread, "u").await;
    fixture.add("ann", "f0", user("u"), "Is vegetarian", None).await;
    fixture.add("ann", "f1", user("u"), "Cooks on Sunday", None).await;
    fixture.add("ann", "f2", user("u"), "Cooks with gas", None).await;
    fixture.add("ann", "f3", FactScope::Agent, "Menus are short", None).await;
    fixture.add("ann", "f4", user("v"), "Eats fish alone", None).await;
    let found = fixture.search("t", "What to eat for lunch on sunday, no meat?", &[1.0, 0.0, 0.0]).await;
    assert_eq!(texts(&found), ["Cooks on Sunday"], "while all wait, words alone find something");
    let near = |text: &str| match text {
        "Is vegetarian" => [0.8, 0.6, 0.0],
        "Cooks on Sunday" => [0.6, 0.8, 0.0],
        "Menus are short" => [0.0, 1.0, 0.0],
        "Eats fish alone" => [1.0, 0.0, 0.0],
        _ => [-1.0, 0.0, 0.0],
    };
    for fact in fixture.waiting().await {
        assert_eq!(fixture.keep(&fact, near(&fact.text)).await, 1);
    }
    let found = fixture.search("t", "What to eat for lunch on sunday, no meat?", &[1.0, 0.0, 0.0]).await;
    assert_eq!(texts(&found), ["Cooks on Sunday", "Is vegetarian", "Menus are short", "Cooks with gas"]);
    let places: Vec<_> = found.iter().map(|found| (found.place_by_words, found.place_by_vector)).collect();
    assert_eq!(places, [(Some(1), Some(2)), (None, Some(1)), (None, Some(3)), (None, Some(4))]);

    // Vectors of another dimension belong to a model that changed but kept its name. Only words
    // count then.
    let found = fixture.search("t", "sunday", &[1.0, 0.0]).await;
    assert_eq!(texts(&found), ["Cooks on Sunday"]);
    assert_eq!((found[0].place_by_words, found[0].place_by_vector), (Some(1), None));
    // A fact that supersedes another one waits for its vector, and the superseded fact is no longer
    // found by vector.
    fixture.add("ann", "f5", user("u"), "Eats meat again", Some("f0")).await;
    let found = fixture.search("t", "", &[0.8, 0.6, 0.0]).await;
    assert_eq!(texts(&found), ["Cooks on Sunday", "Menus are short", "Cooks with gas"]);
    let waiting = fixture.waiting().await;
    assert_eq!(waiting.iter().map(|fact| fact.id.as_str()).collect::<Vec<_>>(), ["f5"]);
}

#[tokio::test]
async fn vectors_go_with_their_facts() {
    let fixture = Fixture::new().await;
    let (thread, acme) = (ThreadId::parse("t").unwrap(), Tenant::parse("acme").unwrap());
    fixture.thread(&thread, "u").await;
    for (number, scope) in
        [user("u"), user("v"), FactScope::Thread(thread.clone()), FactScope::Agent].into_iter().enumerate()
    {
        fixture.add("ann", &format!("f{number}"), scope.clone(), "x", None).await;
        fixture.add("acme~ann", &format!("g{number}"), scope, "x", None).await;
    }
    assert_eq!((fixture.vectors().await, fixture.waiting().await.len()), (8, 8));
    // Row-level security also applies to rows written by a trigger.
    let own = fixture.store.for_tenant(Some(acme.clone()));
    let buckets: Vec<Bucket> = (0..model::BUCKETS).map(Bucket::from_number).collect();
    assert_eq!(own.facts_to_embed(&buckets, 100).await.unwrap().len(), 4);
    assert_eq!(own.vectors_of().await.unwrap().as_deref(), Some(MODEL));
    let agent = AgentId::parse("acme~ann").unwrap();
    let new = NewFact {
        id: "g9".to_owned(),
        scope: Some(FactScope::Agent),
        text: "y".to_owned(),
        kind: None,
        confidence: None,
        supersedes: None,
    };
    own.add_fact(&agent, &new, &CommandId::parse("g9").unwrap(), "ada").await.unwrap().unwrap();
    assert!(own.delete_fact(&agent, "g0", false, &CommandId::parse("d0").unwrap(), "ada").await.unwrap());
    assert_eq!(fixture.vectors().await, 8);

    // The vector of a fact is deleted when the fact is superseded. When that is undone, the fact
    // waits for its vector again.
    fixture.add("ann", "c0", user("u"), "z", Some("f0")).await;
    assert!(!fixture.waiting().await.iter().any(|fact| fact.id == "f0"));
    let ann = AgentId::parse("ann").unwrap();
    assert!(
        fixture.store.delete_fact(&ann, "c0", true, &CommandId::parse("u0").unwrap(), "ada").await.unwrap()
    );
    assert!(fixture.waiting().await.iter().any(|fact| fact.id == "f0"));
    assert_eq!(fixture.vectors().await, 8);

    let threads = [thread.clone()];
    fixture.store.mark_erased(&threads, "ada", "run", None).await.unwrap();
    fixture.store.erase_some(&threads).await.unwrap();
    assert_eq!(fixture.vectors().await, 6);
    fixture.store.erase_owner(&ErasedOwner::User(None, "u".to_owned())).await.unwrap();
    assert_eq!(fixture.vectors().await, 5);
    fixture.store.erase_owner(&ErasedOwner::Tenant(Some(acme))).await.unwrap();
    assert_eq!(fixture.vectors().await, 2);
    let exported = fixture.store.facts_after(&AgentId::parse("ann").unwrap(), "", 10).await.unwrap();
    fixture
        .store
        .clean_up(CleanupKind::Facts, CleanupLimit::Age(std::time::Duration::ZERO), 10)
        .await
        .unwrap();
    assert_eq!(fixture.vectors().await, 0);

    // Imported facts also wait for their vectors.
    let (agent, command) = (AgentId::parse("ann").unwrap(), CommandId::parse("import").unwrap());
    assert_eq!(fixture.store.import_facts(&agent, &exported, &command, "ada").await.unwrap(), 2);
    let waiting: Vec<_> = fixture.waiting().await.into_iter().map(|fact| fact.id).collect();
    assert_eq!(waiting, ["f1", "f3"]);
    let bucket = agent.queue_of(TaskKind::Memory).thread().bucket();
    assert_eq!(fixture.store.facts_to_embed(&[bucket], 1).await.unwrap().len(), 1);
}

#[tokio::test]
async fn what_is_taken_away_keeps_nothing_from_working() {
    let fixture = Fixture::new().await;
    let thread = ThreadId::parse("t").unwrap();
    fixture.thread(&thread, "u").await;
    fixture.add("ann", "f0", user("u"), "Likes tea", None).await;
    let waiting = fixture.waiting().await;
    // The first step drops the type, and with it the column. The second step drops the table, as in
    // a dump restored without the extension.
    for (step, sql) in ["DROP EXTENSION vector CASCADE", "DROP TABLE fact_vectors"].into_iter().enumerate() {
        fixture.database.execute_as_superuser(sql).await;
        assert_eq!(fixture.store.vectors_of().await.unwrap(), None, "{sql}");
        assert_eq!(fixture.waiting().await, [], "{sql}");
        assert_eq!(fixture.keep(&waiting[0], [1.0, 0.0, 0.0]).await, 0, "{sql}");
        let found = fixture.search("t", "tea", &[1.0, 0.0, 0.0]).await;
        assert_eq!(texts(&found), ["Likes tea"], "{sql}");
        fixture.add("ann", &format!("n{step}"), user("u"), "Likes milk", None).await;
        fixture.add("ann", &format!("m{step}"), user("u"), "Likes cream", Some(&format!("n{step}"))).await;
    }
    fixture.database.execute_as_superuser("CREATE EXTENSION vector").await;
    assert_eq!(fixture.lay_out(MODEL).await, VectorTables::Made);
    assert_eq!(fixture.waiting().await.len(), 3);
}

#[tokio::test]
async fn the_first_database_has_no_vectors_and_needs_none() {
    let (database, store) = Database::new(1).await;
    let VectorTables::Unavailable(why) = lay_out_vectors(&database.url, MODEL).await.unwrap() else {
        panic!("laid out");
    };
    assert!(why.contains("vector"), "{why}");
    assert_eq!(store.vectors_of().await.unwrap(), None);
    let buckets = [Bucket::from_number(0)];
    assert_eq!(store.facts_to_embed(&buckets, 10).await.unwrap(), []);
    let (agent, thread) = (AgentId::parse("ann").unwrap(), ThreadId::parse("t").unwrap());
    assert_eq!(store.search_facts(&agent, &thread, "tea", Some(&[1.0]), 4).await.unwrap(), []);
}
