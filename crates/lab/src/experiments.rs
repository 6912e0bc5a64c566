//! What is run: a scenario says what, a campaign runs its trials one after the other, a world is one trial in fresh namespaces, with a subject
//! that carries and workloads that are carried.

pub mod campaign;
pub mod scenario;
pub mod subject;
pub mod trial;
pub mod workload;
pub mod world;
