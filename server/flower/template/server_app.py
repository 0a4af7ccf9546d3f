"""The server: it asks nodes what they hold, splits the work among them, and joins what they learn."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from server.flower.strategy import SpryStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, and write the adapter."""
    strategy = SpryStrategy.of(context.run_config)
    job, held_out = strategy.settings, str(context.run_config["held-out"])
    evaluate = strategy.evaluation(held_out) if held_out else None
    strategy.start(grid, strategy.arrays, num_rounds=job.rounds, timeout=job.deadline, evaluate_fn=evaluate)
    strategy.save(str(context.run_config["out"]))
