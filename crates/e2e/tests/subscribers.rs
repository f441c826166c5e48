//! What subscribers of one thread are shown does not depend on their connections. A slow one, one
//! that is cut after any event, and one that reconnects ten times a second see the same as one that
//! is never cut. Each also gets all ends when very many messages end at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use testkit::{
    link::Link,
    load::PlannedMessage,
    publisher::Publication,
    sse::{FollowOptions, Follower, StreamEvent, Transcript},
};
use tokio::time::sleep;

use crate::{
    api_client::scripted,
    fixture::{Fixture, short},
};

const THREAD: &str = "talk";
/// Per hundred events, the number that are the last of their connection.
const CUTS_OF_A_HUNDRED: u32 = 5;
const RESUMED_EVERY: Duration = Duration::from_millis(100);
const FAR: Duration = Duration::from_secs(1);
/// After the load, every client has everything within this time: the error of a gap comes only
/// after its timeout.
const SETTLED: Duration = Duration::from_secs(30);

/// Duration of the load: `cargo xtask reconnect-soak` sets minutes.
fn load_time() -> Duration {
    let seconds = env::var("ANTIPHON_SOAK_SECONDS");
    seconds.map_or(Duration::from_secs(8), |text| {
        Duration::from_secs(text.parse().expect("ANTIPHON_SOAK_SECONDS"))
    })
}

/// Kind and text.
type Piece = (String, String);

/// All that one subscriber has seen, over all its connections.
#[derive(Debug, Default, PartialEq)]
struct Shown {
    /// For each message its pieces in order. Adjacent texts are joined, because pieces from the
    /// store are larger.
    messages: BTreeMap<String, Vec<Piece>>,
    /// The ends in order, each with its kind.
    ends: Vec<(String, String)>,
}

impl Shown {
    fn of(transcripts: &[Transcript]) -> Self {
        let mut shown = Self::default();
        for received in transcripts.iter().flat_map(|transcript| &transcript.events) {
            shown.take(&received.event);
        }
        shown
    }

    fn take(&mut self, event: &StreamEvent) {
        match event {
            StreamEvent::Chunk(chunk) => {
                let pieces = self.messages.entry(chunk.message.clone()).or_default();
                match pieces.last_mut().filter(|(kind, _)| *kind == chunk.kind) {
                    Some((_, text)) => text.push_str(&chunk.text),
                    None if chunk.text.is_empty() => {}
                    None => pieces.push((chunk.kind.clone(), chunk.text.clone())),
                }
            }
            StreamEvent::Reset { message, .. } => drop(self.messages.remove(message)),
            StreamEvent::Complete { message, .. } => self.ends.push((message.clone(), "complete".to_owned())),
            StreamEvent::Failed { message, code, .. } => self.ends.push((message.clone(), code.clone())),
            // A client whose state exists is never restarted.
            StreamEvent::Restart { .. } => self.ends.push(("everything".to_owned(), "restart".to_owned())),
            StreamEvent::Other { .. } => {}
        }
    }
}

/// Ids that came with two events.
fn repeated_ids(transcripts: &[Transcript]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let ids = transcripts
        .iter()
        .flat_map(|transcript| &transcript.events)
        .filter_map(|received| received.id.clone());
    ids.filter(|id| !seen.insert(id.clone())).collect()
}

fn text(pieces: Option<&Vec<Piece>>) -> String {
    pieces.into_iter().flatten().map(|(_, text)| text.as_str()).collect()
}

/// The differences of one subscriber from the one that was never cut.
fn differences(name: &str, whole: &Shown, seen: &Shown) -> Vec<String> {
    let mut found = Vec::new();
    if seen.ends != whole.ends {
        let first = seen.ends.iter().zip(&whole.ends).position(|(seen, whole)| seen != whole);
        let at = first.unwrap_or(seen.ends.len().min(whole.ends.len()));
        let (actual, expected) = (seen.ends.get(at), whole.ends.get(at));
        found.push(format!(
            "{name}: {} ends instead of {}; the {at}th is {actual:?} instead of {expected:?}",
            seen.ends.len(),
            whole.ends.len()
        ));
    }
    for message in whole.messages.keys().chain(seen.messages.keys()).collect::<BTreeSet<_>>() {
        let (actual, expected) = (seen.messages.get(message), whole.messages.get(message));
        // The store has no text of a failed message: a client that was disconnected has its
        // beginning, or nothing.
        let is_complete = whole.ends.iter().any(|(ended, how)| ended == message && how == "complete");
        let is_right = match is_complete {
            true => actual == expected,
            false => text(expected).starts_with(&text(actual)),
        };
        if !is_right {
            found.push(format!("{name}: {message} is {actual:?}\n    instead of {expected:?}"));
        }
    }
    found
}

/// Turns with and without tools, which succeed and fail, beside messages without a turn, some of
/// which lack a chunk.
async fn load(fixture: &mut Fixture, time: Duration) -> usize {
    let (began, mut ends, mut round) = (Instant::now(), 0, 0_usize);
    let mut last = String::new();
    while began.elapsed() < time {
        let word = ["tools", "slowly", "plain", "fails-for-good"][round % 4];
        let said = fixture.api().say(THREAD, &format!("{word} {round}")).await.unwrap();
        last = said.answer;
        for number in 0..3 {
            let message = short(THREAD, &format!("m-{round}-{number}"), round + number);
            let lost = (round % 5 == 4 && number == 0).then_some(2);
            let publications = message.publications(crate::fixture::DISORDER, lost, &mut fixture.rng);
            fixture.publisher.publish(publications, &fixture.ack_log).await.unwrap();
            ends += 1;
        }
        ends += 1;
        round += 1;
        sleep(Duration::from_millis(150)).await;
    }
    println!("{round} turns, {ends} ends, the last answer is {last}");
    ends
}

/// Cuts the link after one event in twenty.
async fn cut_at_random(link: &Link, follower: &Follower, random: &mut StdRng) -> ! {
    let mut seen = 0;
    let mut cuts = 0_u64;
    loop {
        let events = follower.progress().events;
        if (seen..events).any(|_| random.random_range(0..100) < CUTS_OF_A_HUNDRED) {
            link.cut();
            cuts += 1;
        }
        seen = events;
        sleep(Duration::from_millis(5)).await;
        std::hint::black_box(cuts);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_see_what_an_undisturbed_one_sees() {
    let mut fixture = Fixture::with(scripted).await;
    let gateway = fixture.fleet.gateway_addrs()[0];
    let (far, shaky) = (Link::start(gateway).await.unwrap(), Link::start(gateway).await.unwrap());
    far.set_delay(FAR);
    let follow = |addr, options| Follower::start(&[addr], THREAD, options);
    let uncut = follow(gateway, FollowOptions::default());
    // All subscribers begin at the start of the thread.
    let from_the_beginning =
        || FollowOptions { last_event_id: Some("0".to_owned()), ..FollowOptions::default() };
    let slow = follow(far.addr(), from_the_beginning());
    let cut = follow(shaky.addr(), from_the_beginning());
    let hasty = FollowOptions { hang_up_after: Some(RESUMED_EVERY), ..from_the_beginning() };
    let resumed = follow(gateway, hasty);
    for follower in [&uncut, &slow, &cut, &resumed] {
        follower.opened().await.unwrap();
    }
    let mut random = StdRng::seed_from_u64(11);
    let ends = tokio::select! {
        ends = load(&mut fixture, load_time()) => ends,
        never = cut_at_random(&shaky, &cut, &mut random) => never,
    };
    let waited = uncut.wait(SETTLED + load_time(), |progress| progress.terminals >= ends).await;
    // The rest arrives on connections that are not cut, with enough time for a slow one.
    let began = Instant::now();
    let viewers = [("a slow one", slow), ("one that is cut", cut), ("one that is resumed", resumed)];
    while began.elapsed() < SETTLED && viewers.iter().any(|(_, viewer)| viewer.progress().terminals < ends) {
        sleep(Duration::from_millis(50)).await;
    }
    let transcripts = uncut.stop();
    let whole = Shown::of(&transcripts);
    let mut found: Vec<String> =
        waited.err().map(|error| format!("one that is never cut: {error}")).into_iter().collect();
    found.extend(
        repeated_ids(&transcripts).into_iter().map(|id| format!("one that is never cut: id {id} came twice")),
    );
    for (name, viewer) in viewers {
        let transcripts = viewer.stop();
        println!("{name}: {} connections", transcripts.len());
        found.extend(repeated_ids(&transcripts).into_iter().map(|id| format!("{name}: id {id} came twice")));
        found.extend(differences(name, &whole, &Shown::of(&transcripts)));
    }
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}

/// Messages of one thread that are open at the same time.
const MANY: usize = 2_500;
/// All of their ends arrive within this time.
const ENDS_TIMEOUT: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_get_2500_ends_within_five_seconds() {
    let fixture = Fixture::new().await;
    let viewers = [
        fixture.following("burst").await,
        fixture.following("burst").await,
        fixture.following("burst").await,
    ];
    let pieces = ["one ".to_owned(), "two".to_owned()];
    let messages: Vec<_> = (0..MANY)
        .map(|number| PlannedMessage::of_pieces("burst", &format!("m{number}"), &pieces).unwrap())
        .collect();
    let part = |id| messages.iter().map(|message| message.publication(id)).collect::<Vec<Publication>>();
    fixture.publisher.publish(part(0), &fixture.ack_log).await.unwrap();
    let open: f64 = {
        let began = Instant::now();
        loop {
            let mut open = 0.0;
            for worker in &fixture.fleet.workers {
                open += worker.metrics().await.unwrap().sum("antiphon_worker_open_messages");
            }
            if open >= MANY as f64 || began.elapsed() > Duration::from_secs(20) {
                break open;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    assert!(open >= MANY as f64, "{open} are open");
    fixture.publisher.publish(part(1), &fixture.ack_log).await.unwrap();
    let began = Instant::now();
    for viewer in &viewers {
        let limit = ENDS_TIMEOUT.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
        let waited = viewer.wait(limit, |progress| progress.terminals >= MANY).await;
        assert!(
            waited.is_ok(),
            "{} of {MANY} ends came within {ENDS_TIMEOUT:?}",
            viewer.progress().terminals
        );
    }
    println!("all came after {:?}", began.elapsed());
    for viewer in viewers {
        let transcripts = viewer.stop();
        let shown = Shown::of(&transcripts);
        let ended: BTreeSet<_> = shown.ends.iter().map(|(message, _)| message).collect();
        assert_eq!((ended.len(), shown.ends.len()), (MANY, MANY));
        assert!(shown.ends.iter().all(|(_, end)| end == "complete"));
        let repeated = repeated_ids(&transcripts);
        assert!(repeated.is_empty(), "{} ids came twice, the first {:?}", repeated.len(), repeated.first());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn subscriber_without_an_owner_gets_everything_later() {
    let mut fixture = Fixture::with(scripted).await;
    fixture.fleet.workers[0].kill().await.unwrap();
    let names: Vec<String> = (0..16).map(|number| format!("early-{number}")).collect();
    let mut viewers = Vec::new();
    for name in &names {
        viewers.push(fixture.following(name).await);
    }
    fixture.fleet.workers[0].spawn().unwrap();
    for (number, name) in names.iter().enumerate() {
        fixture.send(&short(name, "m", number)).await;
    }
    for viewer in &viewers {
        viewer.wait(SETTLED, |progress| progress.terminals == 1).await.unwrap();
    }
    fixture.audit(viewers).await;
}
