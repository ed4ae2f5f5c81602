//! The simulation itself: its rules, its seeds, its time.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;

use super::*;

const FIRST: Token = Token::new(0, 0);

fn connected(seed: u64, faults: Faults) -> (Simulated, Network, ClientId) {
    let (mut io, network) = Simulated::new(seed, faults).expect("a descriptor");
    let listener = io.add_simulated_listener();
    let client = network.connect(listener);
    loop {
        io.arm_accept(listener);
        io.wait(None).expect("it cannot fail");
        while let Some(event) = io.next_event() {
            if let Event::Accepted { socket, .. } = event {
                io.adopt(FIRST, socket);
                return (io, network, client);
            }
        }
    }
}

fn bytes(text: &'static [u8]) -> Outgoing {
    Outgoing { head: Bytes::from_static(text), ..Outgoing::default() }
}

#[test]
fn a_broken_rule_names_the_seed() {
    let large = || Outgoing { body: vec![0; 1 << 20].into(), ..Outgoing::default() };
    type Crime = fn(&mut Simulated, Outgoing);
    let crimes: [(&str, Crime); 6] = [
        ("beside a send in flight", |io, large| {
            _ = io.send(FIRST, large);
            _ = io.send(FIRST, bytes(b"more"));
        }),
        ("which is not open", |io, _| {
            io.close(FIRST);
            io.start_recv(FIRST);
        }),
        ("which is not open", |io, _| {
            io.close(FIRST);
            io.close(FIRST);
        }),
        ("which is not open", |io, large| _ = io.send(FIRST.successor(), large)),
        ("a send of nothing", |io, _| _ = io.send(FIRST, Outgoing::default())),
        ("is not of this pass", |io, _| {
            io.chunk(Chunk { buffer: 0, offset: 0, length: 1 });
        }),
    ];
    for (expected, crime) in crimes {
        let (mut io, _network, _client) = connected(77, Faults::NONE);
        let panic = catch_unwind(AssertUnwindSafe(|| crime(&mut io, large())));
        let text = *panic.expect_err(expected).downcast::<String>().expect("a message");
        assert!(text.contains("seed 77") && text.contains(expected), "{text}");
    }
}

#[test]
fn one_seed_is_one_run() {
    fn run(seed: u64) -> Vec<String> {
        let (mut io, network, client) = connected(seed, Faults::ROUGH);
        io.start_recv(FIRST);
        let mut trace = Vec::new();
        assert_eq!(network.write(client, &[7; 20_000]), 20_000);
        network.finish(client);
        let mut over = false;
        while !over {
            io.wait(Some(Duration::from_secs(1))).expect("it cannot fail");
            while let Some(event) = io.next_event() {
                over |= matches!(event, Event::Eof { .. });
                trace.push(format!("{:?} {event:?}", network.now()));
            }
            io.end_pass();
        }
        trace
    }
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn virtual_time_passes_only_in_a_wait_and_scripts_run_on_it() {
    let (mut io, network, client) = connected(5, Faults::NONE);
    io.start_recv(FIRST);
    let begin = network.now();
    network.schedule(Duration::from_secs(7), client, Act::Write(b"late".to_vec()));
    network.schedule(Duration::from_secs(9), client, Act::Finish);
    io.wait(Some(Duration::from_secs(5))).expect("it cannot fail");
    assert!(io.next_event().is_none());
    assert_eq!(network.now() - begin, Duration::from_secs(5));
    io.wait(Some(Duration::from_secs(5))).expect("it cannot fail");
    assert!(matches!(io.next_event(), Some(Event::Data { .. })));
    assert_eq!(network.now() - begin, Duration::from_secs(7));
    io.end_pass();
    io.wait(None).expect("it cannot fail");
    assert!(matches!(io.next_event(), Some(Event::Eof { .. })));
    assert_eq!(network.now() - begin, Duration::from_secs(9));
}

#[test]
fn a_close_with_unread_bytes_costs_the_client_its_answer() {
    let (mut io, network, client) = connected(5, Faults::NONE);
    assert_eq!(network.write(client, b"unread"), 6);
    assert_eq!(io.send(FIRST, bytes(b"answer")).expect("open"), Sending::Complete);
    io.close(FIRST);
    io.wait(None).expect("it cannot fail");
    assert!(matches!(io.next_event(), Some(Event::Closed { .. })));
    assert_eq!(network.read(client, 100), ClientRead::Reset);
}
