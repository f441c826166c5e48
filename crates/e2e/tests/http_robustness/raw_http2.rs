//! HTTP/2 from a bad client: frames made by hand.

use std::time::Instant;

use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags];
    [&head[..], &stream.to_be_bytes(), payload].concat()
}

/// A GET in HPACK without a table: method and scheme by number, path and authority as text.
fn request(path: &str) -> Vec<u8> {
    let path_length = u8::try_from(path.len()).unwrap();
    [&[0x82, 0x86, 0x04, path_length], path.as_bytes(), &[0x01, 9], b"localhost"].concat()
}

fn get_frame(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &request(path))
}

/// A SETTINGS frame with these values, by number.
fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> = values
        .iter()
        .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect();
    frame(SETTINGS, 0, 0, &payload)
}

/// A received frame: kind, flags, stream, payload.
type Frame = (u8, u8, u32, Vec<u8>);

async fn next(reader: &mut (impl AsyncReadExt + Unpin)) -> Option<Frame> {
    let mut head = [0; 9];
    timeout(LIMIT, reader.read_exact(&mut head)).await.expect("the gateway hangs").ok()?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    timeout(LIMIT, reader.read_exact(&mut payload)).await.expect("the gateway hangs").ok()?;
    Some((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
}

/// Sends a flood while it reads, until it is cut or has sent everything; returns the frames
/// received until then.
async fn flood(
    addr: SocketAddr,
    begin: &[u8],
    piece: impl Fn(u32) -> Vec<u8>,
    pieces: u32,
) -> (u32, Vec<Frame>) {
    let (mut reader, mut writer) = TcpStream::connect(addr).await.unwrap().into_split();
    // The writer is dropped at the end of this block; then the gateway sees the end of the input.
    let write = async move {
        writer.write_all(&[PREFACE, begin].concat()).await.unwrap();
        for number in 0..pieces {
            if writer.write_all(&piece(number)).await.is_err() {
                return number;
            }
        }
        pieces
    };
    let read = async {
        let mut frames = Vec::new();
        while let Some(frame) = next(&mut reader).await {
            if frame.0 != SETTINGS {
                frames.push(frame);
            }
        }
        frames
    };
    tokio::join!(write, read)
}

fn went_away(frames: &[Frame]) -> Option<u32> {
    let last = frames.iter().rev().find(|frame| frame.0 == GOAWAY)?;
    Some(u32::from_be_bytes(last.3[4..8].try_into().unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_end_their_connection_and_nothing_grows() {
    let fixture = Fixture::with(impatient).await;
    let addr = fixture.fleet.gateway_addrs()[0];
    for round in 0..2 {
        let before = Held::by(&fixture.fleet.gateways[0]);
        let began = Instant::now();
        let none = settings(&[]);
        let settings_flood = flood(addr, &none, |_| settings(&[(4, 65_535)]), 50_000);
        let ping_flood = flood(addr, &none, |_| frame(PING, 0, 0, &[7; 8]), 50_000);
        let reset_flood = flood(
            addr,
            &none,
            |n| {
                [get_frame(2 * n + 1, "/livez"), frame(RST_STREAM, 0, 2 * n + 1, &8_u32.to_be_bytes())]
                    .concat()
            },
            10_000,
        );
        let never_ends = [none.clone(), frame(HEADERS, END_STREAM, 1, &request("/livez"))].concat();
        let piece = [&[0x00, 3, b'x', b'-', b'a', 0x7f, 0x80, 0x7d][..], &[b'a'; 16_000]].concat();
        let continuation_flood = flood(addr, &never_ends, |_| frame(CONTINUATION, 0, 1, &piece), 2_000);
        let empty_flood = flood(addr, &never_ends, |_| frame(CONTINUATION, 0, 1, &[]), 50_000);
        let data = [none.clone(), frame(HEADERS, END_HEADERS, 1, &request("/livez"))].concat();
        let data_flood = flood(addr, &data, |_| frame(DATA, 0, 1, &[]), 50_000);
        let window_flood =
            flood(addr, &none, |_| frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes()), 1_000);
        let garbage =
            flood(addr, &none, |n| frame(HEADERS, END_STREAM | END_HEADERS, 2 * n + 1, &[0xff; 40]), 1_000);
        let odd = flood(addr, &none, |n| get_frame(2 * n + 2, "/livez"), 10);
        let huge = flood(addr, &none, |_| vec![0xff; 9 + 16_384], 100);
        let all = tokio::join!(
            settings_flood,
            ping_flood,
            reset_flood,
            continuation_flood,
            empty_flood,
            data_flood,
            window_flood,
            garbage,
            odd,
            huge
        );
        println!("floods took {:?}", began.elapsed());
        for (name, (sent, frames), must_go) in [
            ("settings", all.0, false),
            ("pings", all.1, false),
            ("resets", all.2, true),
            ("continuations", all.3, true),
            ("empty continuations", all.4, true),
            ("empty data", all.5, true),
            ("windows", all.6, true),
            ("garbage", all.7, true),
            ("even streams", all.8, true),
            ("a frame that is too long", all.9, true),
        ] {
            println!("{name}: {sent} sent, GOAWAY {:?}", went_away(&frames));
            assert!(
                !must_go || went_away(&frames).is_some_and(|reason| reason != 0) || sent < 1_000,
                "{name}"
            );
        }
        unharmed(&fixture, before, if round == 0 { 200 } else { 32 }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_window_a_stream_is_reset_and_the_connection_stays() {
    let fixture = Fixture::with(impatient).await;
    let (mut reader, mut writer) =
        TcpStream::connect(fixture.fleet.gateway_addrs()[0]).await.unwrap().into_split();
    let begin = [
        PREFACE,
        &settings(&[(4, 0)]),
        &get_frame(1, "/v1/threads/none"),
        &get_frame(3, "/v1/threads/x/events"),
    ];
    writer.write_all(&begin.concat()).await.unwrap();
    let (mut heads, mut resets) = (Vec::new(), Vec::new());
    while resets.len() < 2 {
        let (kind, flags, stream, _) = next(&mut reader).await.expect("the connection was cut");
        match kind {
            HEADERS => heads.push(stream),
            RST_STREAM => resets.push(stream),
            SETTINGS if flags & ACK == 0 => writer.write_all(&frame(SETTINGS, ACK, 0, &[])).await.unwrap(),
            DATA => panic!("data without a window"),
            _ => {}
        }
    }
    heads.sort_unstable();
    resets.sort_unstable();
    assert_eq!((heads, resets), (vec![1, 3], vec![1, 3]));
    writer.write_all(&frame(PING, 0, 0, &[7; 8])).await.unwrap();
    while next(&mut reader).await.expect("the connection was cut").0 != PING {}
    let _ = writer.write_all(&get_frame(5, "/livez")).await;
    loop {
        let (kind, _, stream, _) = next(&mut reader).await.expect("the connection was cut");
        if (kind, stream) == (HEADERS, 5) {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_requests_ends() {
    let fixture = Fixture::with(impatient).await;
    let addr = fixture.fleet.gateway_addrs()[0];
    // Only the preface; settings that are never acknowledged; half a head.
    let half = [PREFACE, &settings(&[]), &frame(HEADERS, END_STREAM, 1, &request("/livez"))].concat();
    let ends = async |begin: Vec<u8>| {
        let (mut reader, mut writer) = TcpStream::connect(addr).await.unwrap().into_split();
        writer.write_all(&begin).await.unwrap();
        let began = Instant::now();
        while next(&mut reader).await.is_some() {}
        assert!(began.elapsed() < HEAD_TIMEOUT * 4, "{:?}", began.elapsed());
    };
    tokio::join!(ends(PREFACE.to_vec()), ends([PREFACE, &settings(&[])].concat()), ends(half));
}
