use std::{collections::VecDeque, future::poll_fn, sync::Arc};

use super::*;

/// A recorder that remembers when what was sent, and receives what it is told to.
#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<Record>>);

#[derive(Debug, Default)]
struct Record {
    sent: Vec<(Duration, Vec<u8>)>,
    to_receive: VecDeque<Vec<u8>>,
    rtt: Duration,
    forwards: bool,
    start: Option<Instant>,
}

impl Recorder {
    fn with_rtt(milliseconds: u64) -> Self {
        let this = Self::default();
        let mut record = this.0.lock();
        record.rtt = Duration::from_millis(milliseconds);
        record.start = Some(Instant::now());
        drop(record);
        this
    }

    /// The milliseconds at which payloads left, and their first bytes.
    fn sent(&self) -> Vec<(u128, u8)> {
        let record = self.0.lock();
        let mark = |(at, payload): &(Duration, Vec<u8>)| (at.as_millis(), payload[0]);
        record.sent.iter().map(mark).collect()
    }
}

impl PackedDatagrams for Recorder {
    fn round_trip(&self) -> Duration {
        self.0.lock().rtt
    }

    fn packs(&self) -> bool {
        !self.0.lock().forwards
    }
}

impl Datagrams for Recorder {
    fn max_payload(&self) -> usize {
        1200
    }

    fn poll_send(&self, _: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>> {
        let mut record = self.0.lock();
        let at = record.start.unwrap().elapsed();
        for payload in batch.payloads() {
            record.sent.push((at, payload.to_vec()));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, _: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        match self.0.lock().to_receive.pop_front() {
            Some(payload) => {
                buf[..payload.len()].copy_from_slice(&payload);
                let (len, segment) = (payload.len(), payload.len().max(1));
                Poll::Ready(Ok(Received { len, segment }))
            }
            None => Poll::Pending,
        }
    }
}

/// Receives `payloads`, the last of which were just answered, then goes on receiving in a task of its own, as front ends do.
async fn receiving(recorder: &Recorder, payloads: &[usize]) -> Arc<Gather<Recorder>> {
    let flow = Arc::new(Gather::new(recorder.clone()));
    let count = payloads.len();
    recorder
        .0
        .lock()
        .to_receive
        .extend(payloads.iter().map(|length| vec![0; *length]));
    let receiver = flow.clone();
    let (all, came) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut all = Some(all);
        for received in 1.. {
            if received > count {
                all.take().map(|all| all.send(()));
            }
            let mut buf = [0; 2000];
            poll_fn(|cx| receiver.poll_recv(cx, &mut buf))
                .await
                .unwrap();
        }
    });
    came.await.unwrap();
    flow.state().answered = Some(Instant::now());
    flow
}

async fn send(flow: &Gather<Recorder>, mark: u8, length: usize) {
    let payload = vec![mark; length];
    poll_fn(|cx| flow.poll_send(cx, Batch::one(&payload)))
        .await
        .unwrap();
}

async fn after(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

#[tokio::test(start_paused = true)]
async fn answers_to_a_download_leave_together() {
    let recorder = Recorder::with_rtt(40);
    let flow = receiving(&recorder, &[1200, 1200]).await;
    send(&flow, 1, 35).await;
    after(2).await;
    send(&flow, 2, 36).await;
    after(20).await;
    assert_eq!(recorder.sent(), [(5, 1), (5, 2)]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_leaves_at_once_if_the_next_will_not_come_in_time() {
    let recorder = Recorder::with_rtt(40);
    let flow = receiving(&recorder, &[1200, 1200]).await;
    after(6).await;
    send(&flow, 1, 35).await;
    assert_eq!(recorder.sent(), [(6, 1)]);
    flow.state().came = DOWNLOAD;
    after(3).await;
    send(&flow, 2, 35).await;
    after(20).await;
    assert_eq!(recorder.sent(), [(6, 1), (14, 2)]);
}

#[tokio::test(start_paused = true)]
async fn what_answers_no_download_does_not_wait() {
    let recorder = Recorder::with_rtt(40);
    let flow = receiving(&recorder, &[1200, 100, 100, 100]).await;
    send(&flow, 1, 35).await;
    assert_eq!(recorder.sent(), [(0, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_is_not_small_takes_along_what_waits_in_order() {
    let recorder = Recorder::with_rtt(40);
    let flow = receiving(&recorder, &[1200, 1200]).await;
    send(&flow, 1, 35).await;
    after(1).await;
    send(&flow, 2, 900).await;
    assert_eq!(recorder.sent(), [(1, 1), (1, 2)]);
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_fit() {
    let recorder = Recorder::with_rtt(40);
    let flow = receiving(&recorder, &[1200, 1200]).await;
    for mark in 0..=u8::try_from(MAX_PAYLOADS).unwrap() {
        send(&flow, mark, 35).await;
    }
    assert_eq!(recorder.sent().len(), MAX_PAYLOADS + 1);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_on_a_short_path_nor_where_packets_are_not_shared() {
    let short = Recorder::with_rtt(4);
    let flow = receiving(&short, &[1200, 1200]).await;
    send(&flow, 1, 35).await;
    assert_eq!(short.sent(), [(0, 1)]);

    let forwarding = Recorder::with_rtt(40);
    forwarding.0.lock().forwards = true;
    let flow = receiving(&forwarding, &[1200, 1200]).await;
    send(&flow, 1, 35).await;
    assert_eq!(forwarding.sent(), [(0, 1)]);
}
