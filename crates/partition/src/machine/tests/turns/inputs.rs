//! Inputs that are accepted and not committed, as gateways are shown them.

use super::*;

fn snapshot(script: &mut TurnScript, known: Vec<KnownMessage>, max_bytes: usize) -> SnapshotReply {
    let gateway = GatewayId::parse("gateway-1").unwrap();
    let (thread, max_messages) = (thread("t"), 64);
    let request = SnapshotRequest { token: 1, gateway, thread, known, max_messages, max_bytes };
    let mut actions = script.machine.handle(Input::Snapshot(request), script.now);
    match actions.pop() {
        Some(Action::Snapshot(reply)) => reply,
        other => panic!("{other:?}"),
    }
}

/// The inputs of a cut, in its order.
fn cut(script: &mut TurnScript) -> Vec<String> {
    let reply = snapshot(script, Vec::new(), 1 << 20);
    reply.open.into_iter().filter_map(|open| Some(open.input?.content.clone())).collect()
}

fn status(script: &mut TurnScript) -> OpenInputs {
    let query = StatusQuery { token: 0, target: QueryTarget::Inputs(thread("t")) };
    let actions = script.machine.handle(Input::Status(query), script.now);
    let [Action::Status(reply)] = &actions[..] else { panic!("{actions:?}") };
    reply.status.inputs.clone().unwrap()
}

fn contents(open: &OpenInputs) -> Vec<&str> {
    open.inputs.iter().map(|input| &*input.content).collect()
}

#[test]
fn an_input_is_shown_from_its_acceptance_to_its_commit() {
    let mut script = TurnScript::new();
    script.auto = false;
    script.open("x");
    assert_eq!((script.inputs.len(), cut(&mut script)), (0, vec![]), "the store has not confirmed it");
    script.auto = true;
    let keys = std::mem::take(&mut script.checks);
    let verdicts = keys.into_iter().map(|key| (key, CommandVerdict::New)).collect();
    script.handle(Input::Checked(verdicts));
    assert_eq!((cut(&mut script), &script.inputs[..]), (vec!["ask x".to_owned()], &["ask x".to_owned()][..]));
    script.open("y");
    assert_eq!(script.inputs, ["ask x", "ask y"]);
    assert_eq!(contents(&status(&mut script)), ["ask x", "ask y"], "in the order of their answers");
    script.auto = false;
    script.say(0, &["hello!"]);
    let before = status(&mut script);
    assert_eq!(contents(&before), ["ask x", "ask y"], "until the commit is applied");
    script.auto = true;
    script.handle(Input::Committed(Vec::new()));
    let after = status(&mut script);
    assert_eq!((contents(&after), cut(&mut script)), (vec!["ask y"], vec!["ask y".to_owned()]));
}

#[test]
fn threads_of_a_tenant_are_busy_until_their_turns_have_ended() {
    let mut script = TurnScript::new();
    let busy = |script: &mut TurnScript, tenant: Option<&str>| {
        let tenant = tenant.map(|name| model::Tenant::parse(name).unwrap());
        let query = StatusQuery { token: 0, target: QueryTarget::BusyThreads(tenant) };
        let actions = script.machine.handle(Input::Status(query), script.now);
        let [Action::Status(reply)] = &actions[..] else { panic!("{actions:?}") };
        reply.status.busy.clone().unwrap()
    };
    assert_eq!(busy(&mut script, None), model::BusyThreads::default());
    script.open("x");
    let threads = vec![model::BusyThread { thread: thread("t"), is_running: true }];
    assert_eq!(busy(&mut script, None), model::BusyThreads { threads, is_cut: false });
    assert_eq!(busy(&mut script, Some("acme")), model::BusyThreads::default(), "of another tenant");
    script.say(0, &["hello!"]);
    script.handle(Input::Committed(Vec::new()));
    assert_eq!(busy(&mut script, None), model::BusyThreads::default());
}

#[test]
fn a_failed_input_is_in_the_cut_until_it_is_committed() {
    let mut script = TurnScript::new();
    script.open("x");
    script.auto = false;
    script.command(control("c", ControlKind::StopTurn(turn("x"))));
    let keys = std::mem::take(&mut script.checks);
    script.handle(Input::Checked(keys.into_iter().map(|key| (key, CommandVerdict::New)).collect()));
    assert_eq!(cut(&mut script), ["ask x"]);
    script.handle(Input::Committed(Vec::new()));
    assert_eq!((cut(&mut script), status(&mut script).inputs.len()), (vec![], 0));
}

#[test]
fn inputs_that_no_person_sent_are_not_shown() {
    let mut script = TurnScript::new();
    let Command::Turn(mut hidden) = opened("h", 0, BusyPolicy::Enqueue) else { unreachable!() };
    hidden.origin = TurnOrigin::Heartbeat { batch: Position::from_stored(1) };
    script.command(Command::Turn(hidden));
    script.task("k");
    assert_eq!((script.inputs.len(), cut(&mut script).len(), status(&mut script).inputs.len()), (0, 0, 0));
}

#[test]
fn a_gateway_gets_each_input_once_and_page_by_page() {
    let mut script = TurnScript::new();
    script.open("x");
    script.open("y");
    let mut known: Vec<KnownMessage> = Vec::new();
    let mut pages = Vec::new();
    loop {
        let reply = snapshot(&mut script, known.clone(), 1);
        let inputs = reply.open.iter().filter_map(|open| Some(open.input.as_ref()?.content.clone()));
        pages.push(inputs.collect::<Vec<_>>());
        let has_already =
            |message: &MessageId| known.iter().any(|one| one.message == *message && one.has_input);
        let next: Vec<KnownMessage> = reply
            .open
            .iter()
            .map(|open| KnownMessage {
                message: open.message.clone(),
                attempt: open.attempt,
                next: open.next,
                has_input: open.input.is_some() || has_already(&open.message),
            })
            .collect();
        known = next;
        if !reply.more {
            break;
        }
    }
    assert_eq!(pages, [vec!["ask x".to_owned()], vec!["ask y".to_owned()]]);
    assert!(known.iter().all(|one| one.has_input) && known.len() == 2);
}
