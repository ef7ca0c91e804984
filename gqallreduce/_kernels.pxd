"""What the C++ headers in csrc/gq offer to the Cython doors."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libcpp cimport bool as c_bool
from libcpp.utility cimport pair
from libcpp.vector cimport vector

cdef extern from "gq/kernels.hpp" namespace "gq" nogil:
    cdef struct Grid:
        uint64_t start, run, parts
    cdef struct Kernels:
        const char* name
    const Kernels& kernels()
    bint use_level(const char* name)
    const char* best_level()

cdef extern from "gq/regions.hpp" namespace "gq" nogil:
    cdef struct CRegion "gq::Region":
        size_t size
        Grid grid
        uint64_t segment
    cdef struct CRegions "gq::Regions":
        const CRegion* first
        size_t count

cdef extern from "gq/door.hpp" namespace "gq" nogil:
    int c_threads "gq::threads" ()
    void c_set_threads "gq::set_threads" (int n)
    unsigned int kUsualControl, kLargestControl
    unsigned int c_float_control "gq::float_control" ()
    void c_set_float_control "gq::set_float_control" (unsigned int word)
    bint c_float_control_is_usual "gq::float_control_is_usual" ()

cdef extern from "gq/doors.hpp" namespace "gq" nogil:
    int c_widen "gq::widen" (const uint8_t* source, float* y, size_t n, int format)
    int c_narrow "gq::narrow" (const float* x, uint8_t* target, size_t n, int format)
    int c_add_finite "gq::add_finite" (const float* x, const float* e, uint8_t* y, size_t n)
    int c_scale "gq::scale" (float* y, float factor, size_t n)
    void c_add "gq::add" (const uint8_t* wire, float* y, size_t n)
    int c_all_finite "gq::all_finite" (const float* x, size_t n)

    size_t c_collect "gq::collect" (
        const float* x, const float* e, float* r, size_t n, uint32_t floor_bits, uint32_t* index, float* value,
        size_t capacity, bint streaming)
    void c_histogram "gq::histogram" (const float* x, const float* e, size_t n, int64_t* counts)
    uint32_t c_kth "gq::kth" (const float* value, size_t n, size_t k, int sign, size_t* above)
    size_t c_keep "gq::keep" (
        uint32_t* index, float* value, size_t n, uint32_t positive_bits, uint32_t negative_bits, int64_t* ties,
        bint joint)
    void c_count_signs "gq::count_signs" (const float* v, size_t n, size_t* positives, size_t* negatives)

cdef extern from "gq/plain_doors.hpp" namespace "gq" nogil:
    int c_plain_encode "gq::plain_encode" (
        const float* x, const float* e, float* r, uint8_t* wire, size_t n, int format)
    int c_plain_decode "gq::plain_decode" (
        const uint8_t* wire, float* y, size_t n, int format, float scale, bint add, bint streaming)

cdef extern from "gq/levels_doors.hpp" namespace "gq" nogil:
    cdef struct CStream "gq::Stream":
        uint32_t key0, key1, hop, encoder, step
    void c_philox "gq::philox" (uint32_t* word, uint32_t key0, uint32_t key1)
    void c_random16 "gq::random16" (const CStream& stream, uint64_t first, size_t count, uint16_t* out)
    bint c_pack "gq::pack" (const uint8_t* code, size_t n, int bits, uint8_t* wire)
    void c_unpack "gq::unpack" (const uint8_t* wire, size_t n, int bits, uint8_t* code)

    cdef enum class Scale "gq::Scale":
        kNorm
        kPowerAbove
        kPowerOcp
    cdef struct SmallFloats "gq::SmallFloats":
        bint zero
        int positive
    cdef struct CLevels "gq::Levels":
        int bits, count
        bint uniform, floating, nearest, rotated, contracted
        SmallFloats floats
        Scale scale
        float reach
        float value[256]
    cdef enum class Order "gq::Order":
        kAscending
        kSignAndMagnitude
        kTwosComplement
    bint uniform_levels(int bits, bint zero_level, CLevels& levels)
    bint table_levels(int bits, const float* value, size_t count, CLevels& levels)
    bint floating_levels(
        int bits, int mantissa, int lowest, int last, bint zero_level, Order order, CLevels& levels)
    size_t c_levels_nbytes "gq::levels_nbytes" (const CRegions& regions, const CLevels& levels)
    int c_levels_encode "gq::levels_encode" (
        const float* x, const float* e, float* r, uint8_t* wire, const CLevels& levels, bint l2,
        const CRegions& regions, const CStream* streams)
    int c_levels_decode "gq::levels_decode" (
        const uint8_t* wire, float* y, const CLevels& levels, const CRegions& regions, float scale)
    int c_levels_decode_add "gq::levels_decode_add" (
        const uint8_t* wire, float* y, const CLevels& levels, const CRegions& regions)
    uint32_t kSpreadBins
    void c_levels_spread "gq::levels_spread" (
        const float* x, const float* e, bint l2, int power, const CRegions& regions, double* weight)

cdef extern from "gq/coded_doors.hpp" namespace "gq" nogil:
    cdef enum class Coding "gq::Coding":
        kHuffman
        kElias
        kRans
    cdef struct PrefixCode "gq::PrefixCode":
        uint16_t pattern[256]
        uint8_t length[256]
    cdef struct EliasCode "gq::EliasCode":
        PrefixCode dense
    int64_t kNotFinite, kMalformed, kNoMemory
    size_t c_coded_bound "gq::coded_bound" (const CRegions& regions, const CLevels& levels)
    int64_t c_coded_encode "gq::coded_encode" (
        const float* x, const float* e, float* r, uint8_t* wire, const CLevels& levels, Coding coding, bint l2,
        const CRegions& regions, const CStream* streams)
    int64_t c_coded_decode "gq::coded_decode" (
        const uint8_t* wire, size_t nbytes, float* y, const CLevels& levels, Coding coding, const CRegions& regions,
        float scale, bint add)
    EliasCode c_elias_code "gq::elias_code" (const CLevels& levels)

cdef extern from "gq/rotation_doors.hpp" namespace "gq" nogil:
    void c_rotate "gq::rotate" (
        const float* x, float* y, size_t n, const Grid& grid, uint64_t key, int rounds, bint back)
    size_t c_eden_nbytes "gq::eden_nbytes" (const CRegions& regions, int bits)
    int c_eden_encode "gq::eden_encode" (
        const float* x, const float* e, float* r, uint8_t* wire, int bits, bint contracted, const CRegions& regions,
        const CStream* streams)
    int c_eden_decode "gq::eden_decode" (
        const uint8_t* wire, float* y, int bits, const CRegions& regions, float scale, bint add)

cdef extern from "gq/onebit_doors.hpp" namespace "gq" nogil:
    size_t c_onebit_nbytes "gq::onebit_nbytes" (const CRegions& regions)
    int64_t c_onebit_encode "gq::onebit_encode" (
        const float* x, const float* e, float* r, uint8_t* wire, const CRegions& regions)
    int64_t c_onebit_decode "gq::onebit_decode" (const uint8_t* wire, float* y, const CRegions& regions, float scale)
    int64_t c_onebit_decode_add "gq::onebit_decode_add" (const uint8_t* wire, float* y, const CRegions& regions)

cdef extern from "gq/adaptive_doors.hpp" namespace "gq" nogil:
    void c_split "gq::split" (uint32_t* index, size_t count, const CRegions& regions, int64_t* counts)
    size_t kTallestRegion
    size_t c_select_bound "gq::select_bound" (const CRegions& regions, size_t pi)
    size_t c_select_regions_bound "gq::select_regions_bound" (const CRegions& regions, size_t pi)
    int64_t c_select_columns "gq::select_columns" (
        const float* x, const float* e, float* r, const CRegions& regions, size_t pi, bint separate,
        uint32_t* index, float* value, int64_t* counts)
    int64_t c_select_regions "gq::select_regions" (
        const float* x, const float* e, float* r, const CRegions& regions, size_t pi, bint separate,
        uint32_t* index, float* value, int64_t* counts)
    size_t c_adaptive_nbytes "gq::adaptive_nbytes" (const CRegions& regions, size_t count)
    int64_t c_adaptive_encode "gq::adaptive_encode" (
        const uint32_t* index, const float* value, const int64_t* counts, float* r, uint8_t* wire,
        const CRegions& regions)
    int64_t c_adaptive_decode "gq::adaptive_decode" (
        const uint8_t* wire, size_t nbytes, float* y, const CRegions& regions, float scale, bint streaming)
    int64_t c_adaptive_decode_add "gq::adaptive_decode_add" (
        const uint8_t* wire, size_t nbytes, float* y, const CRegions& regions)

cdef extern from "gq/golomb_doors.hpp" namespace "gq" nogil:
    cdef struct GolombSizes "gq::GolombSizes":
        int64_t coded
        size_t entries, nbytes
    size_t c_golomb_bound "gq::golomb_bound" (const CRegions& regions, size_t nbytes)
    int64_t c_golomb_encode "gq::golomb_encode" (
        const uint8_t* wire, size_t nbytes, uint8_t* out, const CRegions& regions)
    GolombSizes c_golomb_sizes "gq::golomb_sizes" (const uint8_t* wire, size_t nbytes, const CRegions& regions)
    bint c_golomb_decode "gq::golomb_decode" (const uint8_t* wire, uint8_t* out, const CRegions& regions)

cdef extern from "gq/factors_doors.hpp" namespace "gq" nogil:
    cdef enum class Put "gq::Put":
        kSet, kAdd, kSubtract
    cdef struct Block "gq::Block":
        size_t first, rows, columns, all, rank
    void c_rows_of_factors "gq::rows_of_factors" (const float* v, const Block& block, const float* q, float* p)
    void c_columns_of_factors "gq::columns_of_factors" (const float* v, const Block& block, const float* p, float* q)
    void c_product_of_factors "gq::product_of_factors" (
        const float* p, const float* q, const Block& block, Put put, bint packed, float* y)
    void c_pack_factors "gq::pack_factors" (const float* q, size_t rank, size_t columns, float* packed)
    size_t packed_columns "gq::packed_columns" (size_t columns)
    void c_orthonormalize "gq::orthonormalize" (float* p, size_t size, size_t rank)

cdef extern from "gq/dither_doors.hpp" namespace "gq" nogil:
    cdef struct CDither "gq::Dither":
        int bits
        bint nearest
        float offset, most, meeting
        int zero
    void c_largest_of_rows "gq::largest_of_rows" (const float* x, size_t rows, size_t columns, float* largest)
    void c_dither_encode "gq::dither_encode" (
        const float* x, size_t n, size_t columns, const float* step, const CDither& dither, const CStream& stream,
        uint64_t begin, uint8_t* wire)
    void c_dither_decode "gq::dither_decode" (
        const uint8_t* wire, size_t n, size_t columns, const float* step, const float* number, int bits, bint shifts,
        int zero, const CStream& stream, uint64_t begin, float* y)

cdef extern from "gq/places_doors.hpp" namespace "gq" nogil:
    enum: kPlacesEndEarly "gq::kPlacesEndEarly"
    enum: kPlacesDoNotAscend "gq::kPlacesDoNotAscend"
    enum: kSparseOtherSize "gq::kSparseOtherSize"
    enum: kSparseNotFinite "gq::kSparseNotFinite"
    int64_t c_sparse_encode "gq::sparse_encode" (
        const uint32_t* index, const float* value, const int64_t* counts, float* r, uint8_t* wire,
        const CRegions& regions)
    int64_t c_sparse_decode "gq::sparse_decode" (
        const uint8_t* wire, size_t nbytes, float* y, float scale, bint add, bint sums, const CRegions& regions)
    void c_draw_places "gq::draw_places" (const CStream& stream, uint64_t n, size_t k, int64_t* place) except +
    size_t c_places_nbytes "gq::places_nbytes" (const uint32_t* index, size_t count, size_t elements)
    size_t c_places_write "gq::places_write" (const uint32_t* index, size_t count, size_t elements, uint8_t* out)
    int64_t c_places_read "gq::places_read" (
        const uint8_t* wire, size_t nbytes, size_t elements, uint32_t* index, size_t count)
    bint c_add_at "gq::add_at" (float* y, size_t n, const uint32_t* index, const uint8_t* values, size_t count)
    bint c_put_at "gq::put_at" (float* y, size_t n, const uint32_t* index, const uint8_t* values, size_t count)

cdef extern from "gq/multiples_doors.hpp" namespace "gq" nogil:
    void c_largest_deviation "gq::largest_deviation" (
        const float* x, const float* e, const CRegions& regions, double clip, double* found)
    int c_multiples_quantize "gq::multiples_quantize" (
        const float* x, const float* e, float* r, float* m, const float* units, int steps, bint rotated,
        const CRegions& regions, const CStream* streams, uint64_t* clipped)
    int c_multiples_lower "gq::multiples_lower" (
        float* m, const float* units, bint rotated, const CRegions& regions)

cdef extern from "gq/integers_doors.hpp" namespace "gq" nogil:
    void c_measure "gq::measure" (
        const float* x, const float* e, const CRegions& regions, bint squares, uint32_t* largest, double* totals)
    size_t c_integers_bound "gq::integers_bound" (const CRegions& regions, uint32_t terms)
    int c_integers_quantize "gq::integers_quantize" (
        const float* x, const float* e, float* r, float* m, const float* units, bint ternary,
        const CRegions& regions, const CStream* streams, uint64_t* clipped)
    int64_t c_integers_encode_own "gq::integers_encode_own" (
        const float* x, const float* e, float* r, uint8_t* wire, const float* units, bint ternary,
        const CRegions& regions, const CStream* streams, uint64_t* clipped)
    int64_t c_integers_encode "gq::integers_encode" (
        const float* m, uint8_t* wire, const float* units, uint32_t terms, const CRegions& regions)
    int64_t c_integers_decode "gq::integers_decode" (
        const uint8_t* wire, size_t nbytes, float* y, const float* units, bint whole, float scale, bint add,
        uint32_t terms, const CRegions& regions)

cdef extern from "gq/runtime/coder.hpp" namespace "gq::runtime" nogil:
    cdef enum class Family "gq::runtime::Family":
        kLevels, kCodedLevels, kEden, kOneBit, kPlain, kWide, kAdaptive, kSparse, kUnion, kIntegers, kMultiples,
        kTernary
    cdef enum class Selects "gq::runtime::Selects":
        kNothing, kLargest, kOfColumns
    cdef struct CCoder "gq::runtime::Coder"
    cdef struct Options "gq::runtime::Options":
        CLevels levels
        Coding coding
        bint l2
        int bits
        bint contracted
        int format
        Selects selects
        size_t pi
        bint separate
        bint golomb
        size_t k
        double ratio
        const CCoder* values
        uint64_t bucket
        const float* units
        size_t n_units
        bint ternary
        int steps
        bint rotated
        uint32_t terms
        double clip
    cdef struct CKept "gq::runtime::Kept":
        const uint32_t* index
        const float* value
        const int64_t* counts
        size_t count
        bint finite
    cdef struct CCoder "gq::runtime::Coder":
        Options options
    CCoder coder_of "gq::runtime::coder_of" (Family family)

cdef extern from "gq/runtime/pool.hpp" namespace "gq::runtime" nogil:
    cdef cppclass CPool "gq::runtime::Pool":
        size_t nbytes()

cdef extern from "gq/runtime/program.hpp" namespace "gq::runtime" nogil:
    cdef enum class Op "gq::runtime::Op":
        kPost
    cdef enum class Exposes "gq::runtime::Exposes":
        kNot
    cdef cppclass CInstruction "gq::runtime::Instruction":
        Op op
        int slot, chunk, peer, part, hop, author, index, of, first, count, target
        bint own, alone, adds, result, exact, clears, in_residual, forwarded
        Exposes exposes
    cdef struct CWire "gq::runtime::Wire":
        int chunk, author
        bint exact
    cdef struct CPart "gq::runtime::Part":
        int slot, number
    cdef struct CChoice "gq::runtime::Choice":
        int slot, target
    cdef cppclass CExtent "gq::runtime::Extent":
        vector[CRegion] regions
        int tensor, piece
        size_t start, size, total, at
        bint streams
    cdef struct CStretch "gq::runtime::Stretch":
        int tensor
        size_t start, stop, at
    cdef cppclass CPiece "gq::runtime::Piece":
        int tensor
        size_t size
        vector[CStretch] parts
    cdef cppclass CChunk "gq::runtime::Chunk":
        size_t bound, exact_bound
        vector[CPiece] pieces
        vector[CExtent] extents
    cdef cppclass CProgram "gq::runtime::Program":
        int rank, size, slots, lanes_at_once, messages
        vector[CInstruction] instructions
        vector[CWire] wires
        vector[CPart] parts
        vector[CChoice] choices
        vector[vector[CChunk]] lanes
        vector[pair[int, int]] error_holders
        size_t widest, longest
        double scale
        const CCoder* exact

cdef extern from "gq/runtime/fault.hpp" namespace "gq::runtime" nogil:
    cdef cppclass AtomicLong "std::atomic<long>":
        void store(long)
    AtomicLong instructions_left
    cdef cppclass AtomicInt "std::atomic<int>":
        void store(int)
    AtomicInt stopping_signal
    cdef cppclass AtomicBool "std::atomic<bool>":
        void store(c_bool)
    AtomicBool memory_unreadable

cdef extern from "gq/runtime/event.hpp" namespace "gq::runtime" nogil:
    cdef enum class Kind "gq::runtime::Kind":
        kNone, kOwnFlaw, kBegunFlaw, kSumFlaw, kFinishFlaw, kResultFlaw, kForeign, kMalformed, kPost, kPoll,
        kOutOfMemory
    cdef cppclass CEvent "gq::runtime::Event":
        CEvent()
        Kind kind
        COperation* operation
        int lane, chunk, extent, source, code
        bint exact
        const void* data
        size_t nbytes
    double now()

cdef extern from "gq/runtime/operation.hpp" namespace "gq::runtime" nogil:
    cdef cppclass CArray "gq::runtime::Array":
        uint8_t* data
        int format
        bint wide
        size_t run, stride
    cdef cppclass CTensor "gq::runtime::Tensor":
        CArray source, target
        size_t size
        const float* residual
        float* new_residual
        const CCoder* coder
        uint32_t key0, key1, step
        bint loses, narrow
    cdef cppclass CFlaw "gq::runtime::Flaw":
        uint32_t rank
        uint64_t number
        bint known
        void note(uint32_t rank, uint64_t number)
    cdef struct CSpent "gq::runtime::Spent":
        double encode, decode
        uint64_t messages, bytes_sent, bytes_received, selected, saturated
    cdef struct CSpan "gq::runtime::Span":
        int kind
        Op op
        double began, ended
        int lane, chunk, peer
        size_t nbytes
    cdef cppclass CHeader "gq::runtime::Header":
        uint8_t kind
        uint32_t step
        uint64_t signature, word
        uint32_t rank
        uint16_t hop
        uint8_t lane
        void write(uint8_t* buffer)
    const size_t HEADER_SIZE "gq::runtime::Header::kSize"
    cdef cppclass COperation "gq::runtime::Operation":
        COperation(const CProgram& program, CPool& pool) except +
        void begin(uint64_t signature, uint32_t step) except +
        void rest()
        CPool& pool
        uint64_t number, signature
        uint32_t step
        int tag
        bint done, traced
        vector[CSpan] spans
        CSpent spent
        vector[vector[CKept]] own_kept
        vector[float] own_scales(double clip, bint rotated) except +
        vector[CTensor] tensors
        void select_own() except +
        size_t place(int lane, int chunk)
        CFlaw& flaw(int lane, int chunk)
        CFlaw first_flaw()

cdef extern from "gq/runtime/transport.hpp" namespace "gq::runtime" nogil:
    cdef struct CTicket "gq::runtime::Ticket":
        int message, peer
        bint receives
    cdef cppclass CTransport "gq::runtime::Transport":
        const vector[CTicket]& pending()
        size_t least_limit()
        bint yields()
        int process_of(int peer)
        size_t exposed_from()
    ctypedef uint64_t Handle "gq::runtime::Handle"
    enum: kAllPeers "gq::runtime::kAllPeers"

cdef extern from "gq/runtime/exposure.hpp" namespace "gq::runtime" nogil:
    cdef cppclass CExposure "gq::runtime::Exposure":
        uint64_t mark, flags
        bint read(const uint8_t* buffer, size_t nbytes)
    cdef cppclass CMark "gq::runtime::Mark":
        uint64_t value()
        const void* address()
    bint c_fetch "gq::runtime::fetch" (int process, const CExposure& exposure, size_t start, void* to, size_t nbytes)
    bint c_read_memory "gq::runtime::read_memory" (int process, uint64_t address, void* to, size_t nbytes)

cdef extern from "gq/runtime/exchange.hpp" namespace "gq::runtime" nogil:
    cdef cppclass CExchange "gq::runtime::Exchange":
        bint done()
        bint as_expected()
        size_t longest()
        uint64_t messages, bytes_sent, bytes_received
    cdef enum class RoundsKind "gq::runtime::Rounds::Kind":
        pass
    cdef cppclass CRounds "gq::runtime::Rounds" (CExchange):
        CRounds(RoundsKind kind, int rank, int size, uint8_t* values, size_t nbytes)
    cdef cppclass CMpiSum "gq::runtime::MpiSum" (CExchange):
        CMpiSum(uint8_t* values, size_t count, size_t itemsize, Handle type, size_t most)

cdef extern from "gq/runtime/mpi.hpp" namespace "gq::runtime" nogil:
    cdef cppclass MpiFunctions "gq::runtime::MpiFunctions":
        bint look_up(const char* library)
    cdef struct MpiHandles "gq::runtime::MpiHandles":
        Handle byte, null_request, sum, in_place
        size_t request_size, status_size
    cdef cppclass CMpiTransport "gq::runtime::MpiTransport" (CTransport):
        CMpiTransport(const MpiFunctions& functions, const MpiHandles& handles, Handle communicator)
        void set_topology(vector[char] near, size_t most, size_t most_far)
        void set_processes(vector[int] processes, size_t exposed_from)
        bint sums()
        Handle request(size_t at)
        const vector[uint8_t]& statuses()
        void forget()

cdef extern from "gq/runtime/loopback.hpp" namespace "gq::runtime" nogil:
    cdef cppclass CMailboxes "gq::runtime::Mailboxes":
        bint empty()
        void put(int source, int to, int tag, const uint8_t* data, size_t nbytes)
        bint take(int source, int to, int tag, uint8_t* data, size_t room, size_t& nbytes)
        void set_tap(void (*tap)(void*, int, int, int, vector[uint8_t]&) noexcept, void* context)
    cdef cppclass CLoopback "gq::runtime::Loopback" (CTransport):
        CLoopback(CMailboxes& mailboxes, int rank, size_t limit, uint32_t seed, size_t exposed_from)

cdef extern from "gq/runtime/engine.hpp" namespace "gq::runtime" nogil:
    cdef cppclass Turn "gq::runtime::Engine::Turn":
        bint worked, completed, received
    cdef cppclass CEngine "gq::runtime::Engine":
        CEngine(CTransport& transport, double poll_every)
        void start(COperation& operation) except +
        void start(CExchange& exchange, int tag) except +
        void clear()
        void withdraw()
        Turn work() except +
        double run(double seconds, c_bool& received, c_bool& nothing) except +
        CEvent event
        bint busy()
    void c_run_alone "gq::runtime::run_alone" (COperation& operation, double seconds, CEvent& event) except +

cdef extern from "gq/runtime/progress_thread.hpp" namespace "gq::runtime" nogil:
    cdef cppclass CProgressThread "gq::runtime::ProgressThread":
        CProgressThread(CEngine& engine)
        void hand_over()
        bint take_back()
    void end_thread "gq::runtime::ProgressThread::end" (CProgressThread* thread)
