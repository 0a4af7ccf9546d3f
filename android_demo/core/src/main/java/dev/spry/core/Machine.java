package dev.spry.core;

/** What the system tells about power, network and memory; null where it does not know. */
public interface Machine {
    /** One that tells nothing but the memory of its process. */
    Machine UNKNOWN = new Machine() {
        @Override
        public String power() {
            return "unknown";
        }

        @Override
        public Boolean metered() {
            return null;
        }

        @Override
        public Long freeMemory() {
            return null;
        }
    };

    /** mains, battery or unknown. */
    String power();

    Boolean metered();

    /** Bytes that programs can still take without the system ending others. */
    Long freeMemory();
}
