use model::{MessageId, ThreadId};
use protocols::{AgUi, Protocol, UiMessage};

use super::*;

const APP: &str = "https://app.example";

fn rules(origins: &[&str]) -> CorsRules {
    CorsRules::parse(origins.iter().copied()).unwrap()
}

fn value<'a>(answer: &'a [HeaderPair], name: &str) -> Option<&'a str> {
    answer.iter().find(|(header, _)| *header == name).map(|(_, value)| value.as_str())
}

#[test]
fn a_page_of_an_allowed_origin_may_ask_and_read() {
    let rules = rules(&[APP, "http://localhost:3000"]);
    let answer = rules.preflight(APP, "POST", Some("authorization,Content-Type, idempotency-key")).unwrap();
    assert_eq!(value(&answer, "access-control-allow-origin"), Some(APP));
    assert_eq!(value(&answer, "access-control-allow-methods"), Some("GET, HEAD, POST, PUT, PATCH, DELETE"));
    let headers = value(&answer, "access-control-allow-headers");
    assert_eq!(headers, Some("authorization, content-type, idempotency-key"));
    assert_eq!(value(&answer, "access-control-max-age"), Some("7200"));
    assert!(value(&answer, "vary").unwrap().starts_with("Origin, Access-Control-Request-Method"));
    let traced = rules.preflight(APP, "POST", Some("traceparent, tracestate, baggage"));
    assert!(traced.is_some(), "a page that traces its requests");
    assert_eq!(value(&rules.preflight(APP, "GET", None).unwrap(), "access-control-allow-headers"), None);

    let answer = rules.actual(Some("http://localhost:3000"));
    assert_eq!(value(&answer, "access-control-allow-origin"), Some("http://localhost:3000"));
    assert_eq!(value(&answer, "vary"), Some("Origin"));
    assert!(value(&answer, "access-control-expose-headers").unwrap().starts_with("retry-after, location"));
}

#[test]
fn a_page_may_send_every_header_that_the_readme_names() {
    for name in
        ["Idempotency-Key", "Last-Event-ID", "X-Antiphon-Actor", "X-Antiphon-Thread", "X-Correlation-Id"]
    {
        assert!(rules(&[APP]).preflight(APP, "POST", Some(name)).is_some(), "{name}");
    }
}

#[test]
fn a_page_of_another_origin_may_not() {
    let some = rules(&[APP]);
    for origin in [
        "https://app.example.evil.example",
        "https://evil.example",
        "http://app.example",
        "https://app.example:8443",
        "https://APP.example",
        "https://app.example/",
        "null",
        "",
        "*",
    ] {
        assert_eq!(some.preflight(origin, "GET", None), None, "{origin}");
        assert_eq!(some.actual(Some(origin)), [("vary", "Origin".to_owned())], "{origin}");
    }
    assert_eq!(some.actual(None), [("vary", "Origin".to_owned())]);
    let none = rules(&[]);
    assert_eq!((none.preflight(APP, "GET", None), none.actual(Some(APP))), (None, vec![]));
}

#[test]
fn pages_of_this_machine_may_where_they_are_allowed() {
    let rules = rules(&[APP]).with_this_machine();
    let headers = "authorization, content-type, mcp-protocol-version, mcp-session-id, mcp-method, mcp-name";
    for origin in [APP, "http://localhost", "http://localhost:6274", "http://127.0.0.1:8080"] {
        let preflight = rules.preflight(origin, "POST", Some(headers)).unwrap();
        assert_eq!(value(&preflight, "access-control-allow-origin"), Some(origin));
        assert_eq!(value(&rules.actual(Some(origin)), "access-control-allow-origin"), Some(origin));
    }
    for origin in [
        "https://localhost",
        "http://localhost.evil.example",
        "http://localhost:6274@evil.example",
        "http://localhost:x",
        "http://127.0.0.1.evil.example",
        "http://[::1]:80",
        "null",
    ] {
        assert!(!rules.allows(origin), "{origin}");
    }
    assert_eq!(self::rules(&[]).with_this_machine().actual(None), [("vary", "Origin".to_owned())]);
}

#[test]
fn a_star_allows_all_and_never_credentials() {
    let any = rules(&["*"]);
    let preflight = any.preflight("null", "DELETE", Some("last-event-id")).unwrap();
    let actual = any.actual(Some(APP));
    for answer in [&preflight, &actual, &rules(&[APP]).actual(Some(APP))] {
        assert_eq!(value(answer, "access-control-allow-credentials"), None);
    }
    assert_eq!(value(&preflight, "access-control-allow-origin"), Some("*"));
    assert_eq!(value(&preflight, "access-control-allow-headers"), Some("last-event-id"));
    assert_eq!(value(&actual, "access-control-allow-origin"), Some("*"));
}

#[test]
fn other_methods_and_headers_are_not_allowed() {
    let rules = rules(&[APP]);
    for method in ["TRACE", "CONNECT", "post", "", "*", "GET, POST"] {
        assert_eq!(rules.preflight(APP, method, None), None, "{method}");
    }
    for headers in ["cookie", "authorization, x-other", "*", "x-stainless-", "x-stainless-a\r\nb", "host"] {
        assert_eq!(rules.preflight(APP, "GET", Some(headers)), None, "{headers}");
    }
    let long = ["accept"; 400].join(",");
    assert_eq!(rules.preflight(APP, "GET", Some(&long)), None);
    // Headers that the protocols' libraries send from a page.
    for headers in [
        "content-type,user-agent",
        "authorization,content-type,x-stainless-arch,x-stainless-retry-count,x-stainless-runtime-version",
        "x-correlation-id,x-antiphon-actor",
    ] {
        assert!(rules.preflight(APP, "POST", Some(headers)).is_some(), "{headers}");
    }
}

#[test]
fn what_the_protocols_say_can_be_read() {
    let message = MessageId::parse("m").unwrap();
    let agui = AgUi::new(ThreadId::parse("t").unwrap(), "r", message.clone());
    let demanded = [UiMessage::new(message).headers(), agui.headers()].concat();
    assert!(!demanded.is_empty());
    let exposed: Vec<&str> = EXPOSED.split(", ").collect();
    for (name, _) in demanded {
        assert!(exposed.contains(&name), "{name} is not exposed");
    }
}

#[test]
fn origins_that_no_browser_sends_are_refused() {
    for good in [
        APP,
        "http://localhost",
        "http://127.0.0.1:8080",
        "http://[::1]:3000",
        "https://xn--bcher-kva.example",
        "chrome-extension://abcdefghijklmnop",
        "https://a_b.example:65535",
    ] {
        rules(&[good]);
    }
    for (bad, why) in [
        ("*", "stands alone"),
        ("null", "cannot be trusted"),
        ("https://app.example/", "no slash"),
        ("https://app.example/path", "no slash, no path"),
        ("https://app.example?x", "no slash"),
        ("https://App.example", "lower case"),
        ("https://*.example", "a star"),
        ("https://user@app.example", "no user"),
        ("https://app.example:443", "leave the usual port out"),
        ("http://app.example:80", "leave the usual port out"),
        ("https://app.example:0", "port"),
        ("https://app.example:", "port"),
        ("https://app.example:65536", "port"),
        ("https://app.example:08", "port"),
        ("https://", "host"),
        ("https://a..b", "host"),
        ("https://bücher.example", "xn--"),
        ("https://[zz]", "host"),
        ("https://::1", "host"),
        (" https://app.example", "scheme"),
        ("https://app.example ", "host"),
        ("https://app.example, https://b.example", "no slash"),
        ("app.example", "begin with a scheme"),
        ("//app.example", "begin with a scheme"),
        ("://app.example", "scheme"),
        ("", "scheme"),
    ] {
        let error = CorsRules::parse([APP, bad]).unwrap_err().to_string();
        assert!(error.contains(why) && !error.contains('\n'), "{bad}: {error}");
        assert!(error.starts_with(&format!("the origin {bad:?} cannot be allowed: ")));
    }
}
