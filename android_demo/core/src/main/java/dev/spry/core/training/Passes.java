package dev.spry.core.training;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

import dev.spry.core.ProgramRunner;
import dev.spry.core.Tensor;
import dev.spry.core.bundle.Chain;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.bundle.Parameter;
import dev.spry.core.bundle.Unit;
import dev.spry.core.wire.Task;

/**
 * Steps over a whole batch, whatever shapes the bundle and the memory leave to run them in.
 *
 * <p>A batch runs in pieces of rows when memory is short, and its K directions in turns when there are no programs for
 * all of them at once; losses and derivatives come back as if it had been one step. What enters
 * the cut is kept for the next pass over the same batch, as far as memory allows.
 */
public final class Passes {
    private static final List<Integer> ONCE = Collections.singletonList(0);

    public final Prefixes prefixes;
    private final Stepper stepper;
    private final int cut;
    private final int batch;
    private final int directions;
    private final int exactBlocks;
    private final Set<String> before = new HashSet<>();

    /** `keepPrefixes` pays where batches are visited again. */
    public Passes(Plan plan, ProgramRunner runner, Task task, boolean keepPrefixes) {
        stepper = new Stepper(plan.chain, runner, plan.lowMemory);
        cut = task.cut;
        batch = task.training.batch;
        directions = task.training.directions;
        exactBlocks = task.training.exactBlocks;
        prefixes = new Prefixes(keepPrefixes ? plan.cacheBytes : 0);
        Manifest manifest = plan.chain.manifest;
        for (Unit unit : manifest.units) {
            if (Chain.firstUse(manifest, unit) < cut) {
                for (Parameter parameter : unit.parameters) {
                    before.add(parameter.name);
                }
            }
        }
    }

    // --- steps ---

    /** Derivatives along the units' directions; of the head its exact gradient, or with `scalar` its own derivative. */
    public Pass along(Batch given, Map<String, Tensor> weights, Map<String, Tensor> drawn, boolean scalar)
            throws IOException {
        Pass found = new Pass(directions, batch);
        List<List<Integer>> turns = turns();
        for (Piece piece : pieces(given)) {
            Map<String, Tensor> values = piece.values(weights);
            Tensor hidden = hidden(piece, values);
            for (List<Integer> turn : turns) {
                Map<String, Tensor> part = part(piece, drawn, turn);
                Map<String, Tensor> step = stepper.suffix(values, hidden, part, cut, scalar);
                piece.fill(found.loss, step.get("loss"), ONCE);
                piece.fill(found.jvp, step.get("jvp"), turn);
                putMoved(found, piece, step, drawn, turn);
                if (scalar) {
                    piece.fill(found.headJvp, step.get("head_jvp"), turn);
                } else if (turn == turns.get(0)) { // the head's gradient is the same in every turn
                    add(found.gradients, Stepper.gradients(step), piece.share);
                }
            }
        }
        return found;
    }

    /** True gradients of head and last units, and derivatives along the directions of units before them. */
    public Pass mixed(Batch given, Map<String, Tensor> weights, Map<String, Tensor> drawn) throws IOException {
        Pass whole = new Pass(directions, batch);
        int end = exactCut();
        List<List<Integer>> turns = turns();
        for (Piece piece : pieces(given)) {
            Map<String, Tensor> values = piece.values(weights);
            Tensor hidden = hidden(piece, values);
            Map<String, Tensor> behind = null; // the same for every turn
            for (List<Integer> turn : turns) {
                Map<String, Tensor> part = part(piece, drawn, turn);
                Map<String, Tensor> moved = stepper.tangents(values, hidden, part, cut, end);
                if (behind == null) {
                    behind = stepper.andBack(values, moved.get("hidden"), end);
                    piece.fill(whole.loss, behind.get("loss"), ONCE);
                    add(whole.gradients, Stepper.gradients(behind), piece.share);
                }
                Tensor shares = values.get("example_weight");
                Tensor slopes = Stepper.slopes(behind.get("gradient"), moved.get("tangent"), shares);
                piece.fill(whole.jvp, slopes, turn);
                putMoved(whole, piece, moved, drawn, turn);
            }
        }
        return whole;
    }

    /** What a turn's directions at bottlenecks are as directions of weights. */
    private static void putMoved(
            Pass whole, Piece piece, Map<String, Tensor> results, Map<String, Tensor> drawn, List<Integer> turn) {
        for (Map.Entry<String, Tensor> moved : Stepper.within(results, Stepper.MOVED).entrySet()) {
            if (drawn.containsKey(moved.getKey())) {
                piece.put(whole.moved, moved.getKey(), moved.getValue(), turn);
            }
        }
    }

    /** The segment that a mixed step goes back to. */
    int exactCut() {
        return stepper.chain.exactCut(cut, exactBlocks);
    }

    /** True gradients of units and head. */
    public Pass exact(Batch given, Map<String, Tensor> weights) throws IOException {
        Pass found = new Pass(directions, batch);
        for (Piece piece : pieces(given)) {
            Map<String, Tensor> step = stepper.exact(piece.values(weights), cut);
            piece.fill(found.loss, step.get("loss"), ONCE);
            add(found.gradients, Stepper.gradients(step), piece.share);
        }
        return found;
    }

    /** [batch], without derivatives. */
    public float[] losses(Batch given, Map<String, Tensor> weights) throws IOException {
        Pass found = new Pass(directions, batch);
        for (Piece piece : pieces(given)) {
            Map<String, Tensor> values = piece.values(weights);
            Tensor hidden = hidden(piece, values);
            piece.fill(found.loss, stepper.forward(values, hidden, cut).get("loss"), ONCE);
        }
        return found.loss;
    }

    /** Logits of the batch's examples, from end to end and without leaving anything in the cache. */
    public Tensor logits(Batch given, Map<String, Tensor> weights) throws IOException {
        return whole(given, weights, "logits");
    }

    /** What the logits are a product of; computed like them. */
    public Tensor features(Batch given, Map<String, Tensor> weights) throws IOException {
        return whole(given, weights, "features");
    }

    private Tensor whole(Batch given, Map<String, Tensor> weights, String result) throws IOException {
        float[] found = null;
        int[] shape = null;
        for (Piece piece : pieces(given)) {
            Tensor rows = stepper.forward(piece.values(weights), null, 0).get(result);
            shape = rows.shape();
            int width = rows.size() / shape[0];
            found = found == null ? new float[given.examples * width] : found;
            System.arraycopy(rows.floats(), 0, found, piece.start * width, piece.examples * width);
        }
        shape[0] = given.examples;
        return Tensor.of(found, shape);
    }

    // --- memory ---

    /** Weights before the cut may have changed: then what was kept is of no use. */
    public void changed(Iterable<String> names) {
        for (String name : names) {
            if (before.contains(name)) {
                prefixes.clear();
                return;
            }
        }
    }

    public void release() {
        prefixes.clear();
        stepper.release();
    }

    // --- pieces ---

    /** The batch's rows in pieces of the programs' size; pieces that only fill are left out. */
    private List<Piece> pieces(Batch given) {
        List<Piece> found = new ArrayList<>();
        int size = stepper.chain.batch;
        for (int start = 0; start < Math.min(batch, given.examples); start += size) {
            found.add(new Piece(given, start));
        }
        return found;
    }

    /** Which of the directions run together, turn by turn. */
    private List<List<Integer>> turns() {
        List<List<Integer>> turns = new ArrayList<>();
        for (int k = 0; k < directions; k++) {
            if (k % stepper.chain.directions == 0) {
                turns.add(new ArrayList<>());
            }
            turns.get(turns.size() - 1).add(k);
        }
        return turns;
    }

    private Tensor hidden(Piece piece, Map<String, Tensor> values) throws IOException {
        Tensor hidden = prefixes.get(piece.key);
        if (hidden == null) {
            hidden = stepper.prefix(values, cut);
            if (hidden != null) {
                prefixes.keep(piece.key, hidden);
            }
        }
        return hidden;
    }

    /** A turn's directions, of a piece's rows, which may share them. */
    private Map<String, Tensor> part(Piece piece, Map<String, Tensor> drawn, List<Integer> turn) {
        int size = stepper.chain.batch;
        Map<String, Tensor> found = new LinkedHashMap<>();
        for (Map.Entry<String, Tensor> entry : drawn.entrySet()) {
            float[] values = entry.getValue().floats();
            int[] shape = entry.getValue().shape();
            int own = shape[0] / directions; // rows: of each example one, or one for all
            int width = values.length / shape[0];
            float[] part = new float[turn.size() * size * width];
            for (int k = 0; k < turn.size(); k++) {
                for (int row = piece.start; row < piece.end; row++) {
                    int from = (turn.get(k) * own + (own == 1 ? 0 : row)) * width;
                    System.arraycopy(values, from, part, (k * size + row - piece.start) * width, width);
                }
            }
            shape[0] = turn.size() * size;
            found.put(entry.getKey(), Tensor.of(part, shape));
        }
        return found;
    }

    private static void add(Map<String, Tensor> total, Map<String, Tensor> part, float share) {
        for (Map.Entry<String, Tensor> entry : part.entrySet()) {
            Tensor before = total.get(entry.getKey());
            float[] values = entry.getValue().floats();
            float[] sum = before == null ? new float[values.length] : before.floats();
            for (int i = 0; i < sum.length; i++) {
                sum[i] += share * values[i];
            }
            total.put(entry.getKey(), Tensor.of(sum, entry.getValue().shape()));
        }
    }

    /** Rows of a batch that run together. */
    private final class Piece {
        final String key;
        final int start;
        final int end;
        /** Of its rows; the others only fill. */
        final int examples;
        /** Of the batch's weight. */
        final float share;
        private final Batch given;

        Piece(Batch given, int start) {
            this.given = given;
            this.start = start;
            end = Math.min(start + stepper.chain.batch, batch);
            examples = Math.min(end, given.examples) - start;
            share = (float) ((double) examples / given.examples);
            key = given.number + "/" + start;
        }

        Map<String, Tensor> values(Map<String, Tensor> weights) {
            int size = stepper.chain.batch;
            Map<String, Tensor> tokens = new LinkedHashMap<>();
            for (Map.Entry<String, Tensor> entry : given.tokens.entrySet()) {
                tokens.put(entry.getKey(), Rowwise.filled(entry.getValue(), start, end, size));
            }
            return stepper.values(tokens, Rowwise.filled(given.labels, start, end, size), examples, weights);
        }

        /** Puts what a program says of the piece's examples into place: `part` [numbers, size], `whole` [.., batch]. */
        void fill(float[] whole, Tensor part, List<Integer> numbers) {
            if (part == null) {
                return; // a head alone has no derivative along units
            }
            fill(whole, part, numbers, 1);
        }

        /** The same of a parameter's rows of so many numbers, each of one direction and example. */
        void put(Map<String, Tensor> whole, String name, Tensor part, List<Integer> numbers) {
            int[] shape = part.shape();
            int width = part.size() / shape[0];
            shape[0] = directions * batch;
            Tensor before = whole.get(name);
            float[] values = before == null ? new float[shape[0] * width] : before.floats();
            fill(values, part, numbers, width);
            whole.put(name, Tensor.of(values, shape));
        }

        private void fill(float[] whole, Tensor part, List<Integer> numbers, int width) {
            float[] values = part.floats();
            for (int k = 0; k < numbers.size(); k++) {
                int to = (numbers.get(k) * batch + start) * width;
                System.arraycopy(values, k * stepper.chain.batch * width, whole, to, examples * width);
            }
        }
    }
}
