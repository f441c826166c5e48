use std::future::poll_fn;

use feed::StreamPart::Encoded;
use http_body::Body as _;
use protocols::native::NativeEvent;

use crate::streaming::send_queue::SendQueue;
use crate::streaming::send_queue::SendQueueBody;
use crate::streaming::send_queue::*;

async fn next(body: &mut SendQueueBody) -> Option<Result<Bytes, StreamAborted>> {
    let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
    frame.map(|frame| frame.map(|frame| frame.into_data().unwrap()))
}

#[tokio::test]
async fn a_burst_is_one_write_and_a_single_event_is_not_copied() {
    let (send_queue, mut body) = SendQueue::new(CancellationToken::new(), 1 << 20);
    let event = Bytes::from(vec![b'x'; 6_000]);
    let part = Encoded(event.clone());
    assert!(send_queue.push(std::slice::from_ref(&part)));
    assert_eq!(next(&mut body).await.unwrap().unwrap().as_ptr(), event.as_ptr());
    (0..5).for_each(|_| assert!(send_queue.push(std::slice::from_ref(&part))));
    let sizes = [next(&mut body).await, next(&mut body).await, next(&mut body).await];
    assert_eq!(sizes.map(|part| part.unwrap().unwrap().len()), [12_000, 12_000, 6_000]);
}

#[tokio::test]
async fn too_much_lag_cuts_and_what_came_first_is_no_lag() {
    let connection = CancellationToken::new();
    let (send_queue, mut body) = SendQueue::new(connection.clone(), 100);
    send_queue.push_first([Encoded(Bytes::from(vec![b'p'; 1_000]))]);
    let part = Encoded(Bytes::from(vec![b'x'; 60]));
    assert!(send_queue.push(std::slice::from_ref(&part)) && !connection.is_cancelled());
    assert!(
        !send_queue.push(std::slice::from_ref(&part))
            && connection.is_cancelled()
            && !send_queue.push(std::slice::from_ref(&part))
    );
    assert!(next(&mut body).await.unwrap().is_err(), "no clean end");
}

#[tokio::test(start_paused = true)]
async fn idle_stream_gets_heartbeats_and_a_drain_notice() {
    let (send_queue, mut body) = SendQueue::new(CancellationToken::new(), 100);
    let began = Instant::now();
    assert_eq!(next(&mut body).await.unwrap().unwrap(), native::HEARTBEAT);
    assert_eq!(began.elapsed().as_secs(), 15);
    send_queue.end_with(Encoded(native::drain(300)));
    assert!(next(&mut body).await.unwrap().is_ok());
    assert!(next(&mut body).await.unwrap().is_err(), "no clean end");
}

#[tokio::test(start_paused = true)]
async fn heartbeat_is_sent_only_after_a_silent_interval() {
    let (send_queue, mut body) = SendQueue::new(CancellationToken::new(), 100);
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(send_queue.push(&[Encoded(Bytes::from_static(b"x"))]));
    assert_eq!(next(&mut body).await.unwrap().unwrap(), "x");
    for seconds in [25, 40] {
        assert_eq!(next(&mut body).await.unwrap().unwrap(), native::HEARTBEAT);
        assert_eq!(began.elapsed().as_secs(), seconds);
    }
}

#[tokio::test(start_paused = true)]
async fn drained_resolves_when_taken_and_when_aborted() {
    let (send_queue, mut body) = SendQueue::new(CancellationToken::new(), 100);
    let waits = || {
        let send_queue = send_queue.clone();
        runtime::spawn_named("waits", async move { send_queue.drained().await })
    };
    let resolves = async |waiting| tokio::time::timeout(Duration::from_secs(1), waiting).await.is_ok();
    let x = [Encoded(Bytes::from_static(b"x"))];
    assert!(send_queue.push(&x));
    let (first, second) = (waits(), waits());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!first.is_finished() && !second.is_finished());
    assert!(next(&mut body).await.unwrap().is_ok());
    assert!(resolves(first).await && resolves(second).await);
    assert!(send_queue.push(&x));
    let third = waits();
    tokio::time::sleep(Duration::from_secs(1)).await;
    send_queue.abort(AbortReason::Lag);
    assert!(next(&mut body).await.unwrap().is_err());
    // hyper does the same with a body that has failed.
    drop(body);
    assert!(resolves(third).await);
}

#[tokio::test(start_paused = true)]
async fn encoders_get_values_and_no_notices_of_the_native_stream() {
    let (send_queue, mut body) = SendQueue::new(CancellationToken::new(), 100);
    let restart = FeedEvent { bytes: Bytes::from_static(b"restart"), event: NativeEvent::Restart };
    let restart = StreamPart::Value(Arc::new(restart));
    send_queue.push_first([Encoded(Bytes::from_static(native::OPEN))]);
    assert_eq!(body.next_values().await.unwrap(), None, "a silence");
    assert!(send_queue.push(&[restart.clone(), restart]));
    assert_eq!(body.next_values().await.unwrap().unwrap().len(), 2);
    send_queue.end_with(Encoded(native::drain(300)));
    assert!(body.next_values().await.is_err());
}
