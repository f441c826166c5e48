//! Workflows inside the worker's process. Benches use them to measure the fleet without the time of
//! its workflows.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use model::{Chunk, WorkflowName};
use wire::work::TurnRequest;

/// Answers a turn inside this process: all chunks of the answer, with consecutive ids from 0, the
/// last one final.
pub type LocalWorkflow = Arc<dyn Fn(&TurnRequest) -> Vec<Arc<Chunk>> + Send + Sync>;

/// Workflows inside this process, by name.
#[derive(Clone, Default)]
pub struct LocalWorkflows(Arc<BTreeMap<WorkflowName, LocalWorkflow>>);

impl LocalWorkflows {
    /// A set of workflows by name; requests for other workflows are published.
    pub fn new(workflows: impl IntoIterator<Item = (WorkflowName, LocalWorkflow)>) -> Self {
        Self(Arc::new(workflows.into_iter().collect()))
    }

    pub(crate) fn get(&self, name: &WorkflowName) -> Option<&LocalWorkflow> {
        self.0.get(name)
    }
}

impl fmt::Debug for LocalWorkflows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
