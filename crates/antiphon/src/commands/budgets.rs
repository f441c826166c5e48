//! Budgets of a tenant: seeing, setting and deleting them.

use gateway::{BudgetBody, BudgetView};
use serde_json::{Value, json};
use store::{MOST_BUDGETS, Store};

use super::command_id::new_command_id;
use crate::exit::ExitError;
use crate::options::{DeleteBudget, ListBudgets, PutBudget};
use crate::output::{self, Table, cell};

/// Budgets of one page.
const PAGE: u32 = 500;
const COLUMNS: [&str; 8] = ["name", "scope", "unit", "limit", "spent", "remaining", "period", "resets_at"];

/// Prints all of them.
pub(super) async fn list(store: &Store, options: &ListBudgets) -> Result<(), ExitError> {
    let store = store.with_prices(options.prices.read()?);
    let (mut budgets, mut after) = (Vec::new(), None);
    loop {
        let page = store.budgets(options.tenant.as_ref(), after.as_ref(), PAGE).await?;
        let is_last = page.len() < PAGE as usize;
        after = page.last().map(|row| row.name.clone());
        budgets.extend(page.into_iter().map(|row| output::json(&BudgetView::of(row, store.prices()))));
        if is_last {
            break;
        }
    }
    let json = json!({ "budgets": budgets });
    output::print(options.database.format, &json, || {
        let mut table =
            Table::new(["NAME", "SCOPE", "UNIT", "LIMIT", "SPENT", "REMAINING", "PERIOD", "RESETS AT"]);
        for budget in &budgets {
            let mut cells = COLUMNS.map(|column| cell(&budget[column]));
            let of = [&budget["agent_id"], &budget["user_id"]].into_iter().find_map(Value::as_str);
            if let Some(of) = of {
                cells[1] = format!("{} {of}", cells[1]);
            }
            table.row(cells);
        }
        table
    })
}

/// Makes or changes one, and prints it.
///
/// # Errors
/// What was given makes no budget, or the tenant has as many as it may.
pub(super) async fn put(store: &Store, options: PutBudget) -> Result<(), ExitError> {
    let store = store.with_prices(options.prices.read()?);
    let body = BudgetBody {
        tokens: options.tokens,
        cost: options.cost,
        period: options.period,
        time_zone: Some(options.time_zone),
        agent_id: options.agent,
        user_id: options.user,
    };
    let (tenant, name) = (options.tenant.as_ref(), &options.name);
    let budget = body.budget(tenant, store.prices().is_some()).map_err(ExitError::Configuration)?;
    // In the scope of the tenant: refused where it was erased.
    let scoped = store.for_tenant(tenant.cloned());
    if !scoped.put_budget(tenant, name, &budget, &new_command_id()?, &options.actor).await? {
        let detail = format!("the tenant has {MOST_BUDGETS} budgets, which is as many as it may");
        return Err(ExitError::Failed(detail));
    }
    let row = store.budget(tenant, name).await?;
    let row = row.ok_or_else(|| ExitError::Failed("the budget was deleted meanwhile".to_owned()))?;
    let json = output::json(&BudgetView::of(row, store.prices()));
    output::print(options.database.format, &json, || output::key_value_table(&json))
}

/// Deletes one.
///
/// # Errors
/// There is none of that name.
pub(super) async fn delete(store: &Store, options: &DeleteBudget) -> Result<(), ExitError> {
    let (tenant, name) = (options.tenant.as_ref(), &options.name);
    if !store.delete_budget(tenant, name, &new_command_id()?, &options.actor).await? {
        return Err(ExitError::Failed(format!("there is no budget {name}")));
    }
    output::eprint_line(&format!("budget {name} is deleted"));
    Ok(())
}
