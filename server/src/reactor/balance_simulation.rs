//! The reactor beside another worker, on the simulated network: the test plays the other one.

use std::time::{Duration, Instant};

use super::Settings;
use super::command::{Command, Commands};
use super::io::ListenerIndex;
use super::run::{Parts, Reactor};
use super::sim::{Faults, Network, Simulated};
use super::simulation::{parts, settings};
use crate::board::{Board, CellLease, CellState, WorkerCell};
use crate::clock;
use crate::limits;
use crate::sync::Arc;

const CLIENT_COUNT: usize = 30;
/// What one worker takes while another has none.
const ALONE_COUNT: usize = 2 * limits::BALANCE_SLACK;
const PATIENCE: Duration = Duration::from_secs(5);

struct World {
    reactor: Reactor<Simulated>,
    network: Network,
    commands: Arc<Commands>,
    other: WorkerCell,
    /// Of the other, which lives as long as this.
    _leases: [CellLease; 2],
    start: Instant,
}

impl World {
    /// All clients have connected to the public listener, and nobody has accepted.
    fn new(seed: u64, faults: Faults) -> Self {
        let board = Board::new(2).expect("memory");
        let leases = [board.lease(), board.lease()].map(|lease| lease.expect("a cell"));
        let (mut io, network) = Simulated::new(seed, faults).expect("a simulation");
        io.add_simulated_listener();
        io.add_simulated_listener();
        let parts = Parts {
            cell: Some(leases[0].worker_cell()),
            admin_listener_count: 1,
            ..parts(Settings { connections_max: 1000, ..settings() }, &io, CLIENT_COUNT)
        };
        let commands = Arc::clone(&parts.commands);
        let start = clock::now();
        let reactor = Reactor::new(io, parts, start);
        for _ in 0..CLIENT_COUNT {
            let _ = network.connect(ListenerIndex(0));
        }
        let other = leases[1].worker_cell();
        Self { reactor, network, commands, other, _leases: leases, start }
    }

    /// One pass of the reactor. True: it has ended.
    fn pass(&mut self) -> bool {
        let ended = self.reactor.obey();
        if !ended {
            let (start, network) = (self.start, &self.network);
            self.reactor.pass(|| start + network.now()).expect("a pass");
        }
        ended
    }

    /// The other worker says that it is there and has so many.
    fn other_publishes(&self, connections: usize) {
        self.other.publish(self.start + self.network.now(), CellState::Accepting, connections);
    }

    fn count(&self) -> usize {
        self.reactor.slots.len()
    }

    /// The other has none and shows itself at each pass.
    fn fill_its_share(&mut self) {
        while self.network.now() < PATIENCE {
            self.other_publishes(0);
            self.pass();
        }
        assert_eq!(self.count(), ALONE_COUNT);
    }
}

#[test]
fn rules_24_one_that_is_ahead_leaves_the_rest_until_the_other_falls_silent() {
    for seed in 0..20 {
        for faults in [Faults::NONE, Faults::ROUGH] {
            let mut world = World::new(seed, faults);
            world.fill_its_share();
            let silent_since = world.network.now();
            while world.count() < CLIENT_COUNT {
                world.pass();
                let waited = world.network.now() - silent_since;
                assert!(waited < PATIENCE, "seed {seed}: {} of {CLIENT_COUNT}", world.count());
                let is_early = waited < limits::HEARTBEAT_AGE_MAX && faults == Faults::NONE;
                assert!(!is_early || world.count() == ALONE_COUNT, "seed {seed}: after {waited:?}");
            }
        }
    }
}

#[test]
fn rules_24_what_is_armed_is_taken_back_when_the_others_have_less() {
    for seed in 0..20 {
        let faults = Faults { late: 300, ..Faults::NONE };
        let mut world = World::new(seed, faults);
        // All are taken, and the accept waits for more.
        while world.count() < CLIENT_COUNT {
            world.other_publishes(1000);
            world.pass();
        }
        let full = world.network.now();
        while world.network.now() < full + PATIENCE {
            world.other_publishes(0);
            world.pass();
        }
        let _late = world.network.connect(ListenerIndex(0));
        while world.network.now() < full + 2 * PATIENCE {
            world.other_publishes(0);
            world.pass();
        }
        assert_eq!(world.count(), CLIENT_COUNT, "seed {seed}: it took what was not its turn");
        let caught_up = world.network.now();
        while world.count() == CLIENT_COUNT {
            world.other_publishes(CLIENT_COUNT);
            world.pass();
            assert!(world.network.now() < caught_up + PATIENCE, "seed {seed}: nobody took it");
        }
    }
}

#[test]
fn rules_24_one_without_descriptors_is_not_counted_although_its_admin_listener_waits() {
    let mut world = World::new(1, Faults { exhausted: 1000, ..Faults::NONE });
    world.pass();
    world.pass();
    let states: Vec<_> = world.other.others().map(|reading| reading.state).collect();
    assert_eq!(states, [CellState::Declining]);
}

#[test]
fn a_drain_takes_what_has_connected_whatever_the_others_have() {
    for seed in 0..20 {
        let mut world = World::new(seed, Faults::NONE);
        world.fill_its_share();
        world.commands.want(Command::Drain);
        let mut most = 0;
        while !world.pass() {
            world.other_publishes(0);
            most = most.max(world.count());
            assert!(world.network.now() < 3 * PATIENCE, "seed {seed} does not end");
        }
        assert_eq!(most, CLIENT_COUNT, "seed {seed}: left behind in the listen queue");
    }
}
