package dev.spry.core.wire;

/** Mode iteration: one client's step, as numbers along directions that everybody can draw again. */
public final class ScalarReport {
    public final float loss;
    /** The batch's rows that count, the first ones. */
    public final int examples;
    /** [K, rows], K outermost: one of each example of the batch, or their mean where they share directions. */
    public final float[] jvp;
    /** The same where the head is trained by scalars; else null. */
    public final float[] headJvp;
    /** All of the head's parameters in the manifest's order, where it is trained by its exact gradient; else null. */
    public final float[] headGradient;

    public ScalarReport(float loss, int examples, float[] jvp, float[] headJvp, float[] headGradient) {
        this.loss = loss;
        this.examples = examples;
        this.jvp = jvp;
        this.headJvp = headJvp;
        this.headGradient = headGradient;
    }
}
