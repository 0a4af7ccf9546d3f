package dev.spry.core.bundle;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import dev.spry.core.BundleException;

/**
 * The programs of one runtime at one batch size, length and number of directions K.
 *
 * <p>A model is a chain of segments, `embed`, groups of blocks, `head`. A forward-mode step runs `plain` programs up to
 * the cut, the cut segment's `enter`, where tangents start, and `dual` programs after it.
 */
public final class Chain {
    public final Manifest manifest;
    public final String runtime;
    public final int batch;
    public final int length;
    public final int directions;
    private final Map<String, ProgramSpec> programs = new LinkedHashMap<>();

    public Chain(Manifest manifest, String runtime, int batch, int length, int directions) {
        RuntimeSpec spec = manifest.runtime(runtime);
        if (!offered(manifest, batch, length)) {
            throw new BundleException("the bundle has no programs for batch x length " + batch + "x" + length
                    + "; it has " + manifest.shapes);
        }
        if (!manifest.directions.contains(directions)) {
            throw new BundleException(
                    "the bundle has no programs with " + directions + " directions; it has " + manifest.directions);
        }
        this.manifest = manifest;
        this.runtime = runtime;
        this.batch = batch;
        this.length = length;
        this.directions = directions;
        for (ProgramSpec program : spec.programs) {
            boolean fits = program.directions == 0 || program.directions == directions;
            if (program.batch == batch && program.length == length && fits) {
                programs.put(key(program.segment, program.kind), program);
            }
        }
    }

    /** The head's position. */
    public int head() {
        return manifest.segments.size() - 1;
    }

    public boolean has(int segment, String kind) {
        return programs.containsKey(key(name(segment), kind));
    }

    /** A segment's program of a kind. */
    public ProgramSpec program(int segment, String kind) {
        ProgramSpec program = programs.get(key(name(segment), kind));
        if (program == null) {
            throw new BundleException("the bundle has no " + kind + " program of " + name(segment) + " for " + runtime
                    + ", " + batch + "x" + length + ", K=" + directions + ": export it again");
        }
        return program;
    }

    /** All programs of this shape. */
    public Collection<ProgramSpec> programs() {
        return programs.values();
    }

    /** A segment's name. */
    public String name(int segment) {
        if (segment < 0 || segment >= manifest.segments.size()) {
            throw new BundleException("the bundle has no segment " + segment + "; it has " + manifest.segments.size()
                    + ", numbered from 0");
        }
        return manifest.segments.get(segment).name;
    }

    /** The position of a segment. */
    public int position(String name) {
        for (int i = 0; i < manifest.segments.size(); i++) {
            if (manifest.segments.get(i).name.equals(name)) {
                return i;
            }
        }
        throw new BundleException("the bundle has no segment " + name + "; export it again");
    }

    // --- the programs of a pass ---

    /** Those of a pass without derivatives, from a segment on. */
    public List<ProgramSpec> forward(int first) {
        return between(first, head() + 1, "plain");
    }

    /** Those before a cut. */
    public List<ProgramSpec> prefix(int cut) {
        return between(0, cut, "plain");
    }

    /** Those of a step from its cut on; `scalar`: the head gives its derivative instead of its gradient. */
    public List<ProgramSpec> suffix(int cut, boolean scalar) {
        List<ProgramSpec> found = new ArrayList<>();
        if (cut == head()) {
            found.add(program(cut, scalar && !manifest.head.isEmpty() ? "scalar" : loneHead()));
            return found;
        }
        found.addAll(tangents(cut, head()));
        found.add(program(head(), scalar && !manifest.head.isEmpty() ? "scalar" : "dual"));
        return found;
    }

    /** Those that carry tangents from the cut to another segment. */
    public List<ProgramSpec> tangents(int cut, int end) {
        if (cut >= end) {
            return Collections.emptyList();
        }
        if (!has(cut, "enter")) {
            throw new BundleException("no tangent can start at " + name(cut) + ": take a segment that holds units");
        }
        List<ProgramSpec> carrying = new ArrayList<>();
        carrying.add(program(cut, "enter"));
        carrying.addAll(between(cut + 1, end, "dual"));
        return carrying;
    }

    /** Those of a step in reverse mode, which goes back to the first unit at or after the cut. */
    public List<ProgramSpec> exact(int cut) {
        int lowest = lowest(cut);
        return mixed(lowest, lowest);
    }

    /** Those of a step with tangents from the cut on, and in reverse mode from another one on. */
    public List<ProgramSpec> mixed(int cut, int exactCut) {
        List<ProgramSpec> whole = prefix(cut);
        whole.addAll(tangents(cut, exactCut));
        whole.addAll(between(exactCut, head(), "plain"));
        whole.addAll(between(exactCut, head() + 1, "vjp"));
        return whole;
    }

    /**
     * The segment that a step from a cut goes back to if it may go back through so many of the model's last blocks.
     * What is trained behind the cut lies wholly before it or wholly behind it, and nothing is gone through in vain.
     */
    public int exactCut(int cut, int blocks) {
        int wanted = 0;
        while (wanted < head() && manifest.segments.get(wanted).firstBlock < manifest.model.blocks - blocks) {
            wanted++;
        }
        for (int across = across(cut, wanted); across >= 0; across = across(cut, wanted)) {
            wanted = across + 1;
        }
        return Math.min(Math.max(wanted, lowest(cut)), head());
    }

    /** The last use of units that are used on both sides of a segment and not before the cut; -1 without any. */
    private int across(int cut, int segment) {
        int last = -1;
        for (Unit unit : manifest.units) {
            int first = firstUse(manifest, unit);
            int end = lastUse(manifest, unit);
            last = cut <= first && first < segment && segment <= end ? Math.max(last, end) : last;
        }
        return last;
    }

    /** The first use of a unit at or after the cut; the head where there is none. */
    public int lowest(int cut) {
        int lowest = head();
        for (Unit unit : manifest.units) {
            int use = firstUse(manifest, unit);
            lowest = use >= cut ? Math.min(lowest, use) : lowest;
        }
        return lowest;
    }

    /** The number of the first segment that a unit is used in. */
    public static int firstUse(Manifest manifest, Unit unit) {
        for (int i = 0; i < manifest.segments.size(); i++) {
            if (unit.segments.contains(manifest.segments.get(i).name)) {
                return i;
            }
        }
        throw new BundleException("unit " + unit.name + " is used in no segment; export the bundle again");
    }

    /** The number of the last segment that a unit is used in. */
    public static int lastUse(Manifest manifest, Unit unit) {
        int last = firstUse(manifest, unit);
        for (int i = last; i < manifest.segments.size(); i++) {
            last = unit.segments.contains(manifest.segments.get(i).name) ? i : last;
        }
        return last;
    }

    /** The head's own gradient needs no tangent, so a head without units takes its exact program. */
    private String loneHead() {
        return has(head(), "enter") ? "enter" : "vjp";
    }

    private static boolean offered(Manifest manifest, int batch, int length) {
        for (Shape shape : manifest.shapes) {
            if (shape.batch == batch && shape.length == length) {
                return true;
            }
        }
        return false;
    }

    private List<ProgramSpec> between(int first, int end, String kind) {
        List<ProgramSpec> found = new ArrayList<>();
        for (int i = first; i < end; i++) {
            found.add(program(i, kind));
        }
        return found;
    }

    private static String key(String segment, String kind) {
        return segment + "." + kind;
    }
}
