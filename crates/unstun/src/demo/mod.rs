//! stub
use crate::{client::Client, error::Result, output::Output};
#[derive(Default)]
pub struct Plan;
pub async fn run(_c: &Client, _o: Output, _p: &Plan) -> Result<()> {
    Ok(())
}
