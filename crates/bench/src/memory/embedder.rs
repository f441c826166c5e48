//! A small embedding model, run from a registry package: `embeddings/server.py`, used through the
//! client of the workers.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use devservices::{pip, workspace};
use embeddings::{Embeddings, EmbeddingsConfig};
use model::Bucket;
use store::Store;

/// Number of facts per request, as in a worker.
const MOST_FACTS: u32 = 64;

/// The running model; it ends when the value is dropped.
pub(super) struct Embedder {
    pub(super) client: Embeddings,
    server: Child,
}

impl Embedder {
    /// Installs the packages below cargo's target folder if they are missing, and starts the model.
    pub(super) fn start() -> Result<Self> {
        let sources = workspace::root().join("crates/bench/embeddings");
        let target = workspace::target_dir().join("bench/embeddings");
        let packages = pip::install(&sources.join("requirements.txt"), &target)?;
        let mut python = Command::new("python3");
        python.arg(sources.join("server.py")).env("PYTHONPATH", packages).env("PYTHONDONTWRITEBYTECODE", "1");
        let mut server = python.stdout(Stdio::piped()).spawn().context("starting python3")?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().context("no output")?).read_line(&mut line)?;
        let port: u16 = line.trim().parse().context("the model did not start")?;
        let client = Embeddings::new(&EmbeddingsConfig {
            base_url: format!("http://127.0.0.1:{port}/v1"),
            api_key: None,
            model: "wordllama-256".to_owned(),
            dimensions: None,
            timeout: Duration::from_secs(30),
        })?;
        Ok(Self { client, server })
    }

    /// Gives a vector to every fact that waits for one.
    pub(super) async fn embed_facts(&self, store: &Store) -> Result<()> {
        let buckets: Vec<Bucket> = (0..model::BUCKETS).map(Bucket::from_number).collect();
        loop {
            let facts = store.facts_to_embed(&buckets, MOST_FACTS).await?;
            if facts.is_empty() {
                return Ok(());
            }
            let texts: Vec<&str> = facts.iter().map(|fact| fact.text.as_str()).collect();
            let vectors = self.client.of_facts(&texts).await?;
            store.keep_vectors(self.client.vectors_of(), &facts, &vectors).await?;
        }
    }
}

impl Drop for Embedder {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
