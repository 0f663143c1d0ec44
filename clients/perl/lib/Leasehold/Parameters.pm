package Leasehold::Parameters;

# What callers give, checked.
#
# In:    the parameters of a manager or a claim. Out: values that the keychain takes.
# Never: guesses what a bad value meant.

use strict;
use warnings;

use JSON::PP ();
use Scalar::Util qw(looks_like_number);

use Leasehold::Error;

our $VERSION = '0.2.0';

my $TTL_DEFAULT = 30;

my %IS_OPTION = map { $_ => 1 } qw(
    url key key_file command ttl timeout max_hold grace api_version on_lost on_destroy_failure
);
my %IS_CLAIM_OPTION = map { $_ => 1 } qw(resource shared slots also ttl timeout data max_hold lead on_lost);
my %IS_ITEM_OPTION  = map { $_ => 1 } qw(resource shared slots);

sub of_manager {
    my ($arg) = @_;
    check_names( $arg, \%IS_OPTION );
    my %checked = ( on_lost => 'terminate', on_destroy_failure => 'abort', ttl => $TTL_DEFAULT );
    my %flag;
    if ( defined( my $version = $arg->{api_version} ) ) {
        invalid("'$version' is no API version; the current one is v1") if $version !~ m/\A[[:alnum:]]+\z/;
        $flag{'api-version'} = $version;
    }
    for my $name (qw(ttl timeout max_hold grace)) {
        next if !defined $arg->{$name};
        $checked{$name} = seconds( $name, $arg->{$name} );
        ( my $option = $name ) =~ tr/_/-/;
        $flag{$option} = $checked{$name} if $name ne 'grace';
    }
    $checked{flags} = [ map { [ $_, $flag{$_} ] } sort keys %flag ];
    for my $name (qw(on_lost on_destroy_failure command)) {
        $checked{$name} = $arg->{$name} if defined $arg->{$name};
    }
    _check_on_lost( $checked{on_lost} );
    if ( $checked{on_destroy_failure} !~ m/\A(?:abort|exit|warn)\z/ ) {
        invalid("'on_destroy_failure' must be 'abort', 'exit' or 'warn'");
    }
    $checked{env} = _environment($arg);
    return \%checked;
}

# Keys are no flags: others on this machine could see them.
sub _environment {
    my ($arg) = @_;
    my %env;
    if ( defined $arg->{url} ) {
        $env{LEASEHOLD_ADDR} = ref $arg->{url} ? join q{,}, @{ $arg->{url} } : $arg->{url};
        invalid("'url' must not be empty") if $env{LEASEHOLD_ADDR} eq q{};
    }
    if ( defined $arg->{key} || defined $arg->{key_file} ) {
        @env{qw(LEASEHOLD_KEY LEASEHOLD_KEY_FILE)} = @{$arg}{qw(key key_file)};
    }
    return \%env;
}

sub check_names {
    my ( $arg, $is_known ) = @_;
    my @unknown = grep { !$is_known->{$_} } sort keys %{$arg};
    invalid( "unknown: @unknown; there are " . join q{, }, sort keys %{$is_known} ) if @unknown;
    return;
}

sub _check_on_lost {
    my ($on_lost) = @_;
    return if ref $on_lost eq 'CODE' || $on_lost eq 'terminate';
    return invalid("'on_lost' must be 'terminate' or a code reference");
}

sub seconds {
    my ( $name, $value ) = @_;
    my $is_number = looks_like_number($value) && $value == $value && abs $value < 9**15;
    if ( $name eq 'max_hold' && $is_number && $value == 0 ) {
        invalid("a 'max_hold' of 0 would hold nothing; leave it out to hold without a limit");
    }
    if ( !$is_number || $value < 0 || ( $value == 0 && $name ne 'timeout' ) ) {
        invalid("'$name' must be a number of seconds above 0");
    }
    return 0 + $value;
}

sub invalid {
    my ($message) = @_;
    return Leasehold::Error::Invalid->throw( message => $message );
}

# The request for a claim, as the keychain takes it.
sub of_claim {
    my ($arg) = @_;
    check_names( $arg, \%IS_CLAIM_OPTION );
    _check_on_lost( $arg->{on_lost} ) if defined $arg->{on_lost};
    my $also = defined $arg->{also} ? $arg->{also} : [];
    invalid("'also' must be a reference to an array of resources") if ref $also ne 'ARRAY';
    my @others = map { _item( ref $_ ? $_ : { resource => $_ } ) } @{$also};
    my %first  = map { $_ => $arg->{$_} } grep { exists $arg->{$_} } keys %IS_ITEM_OPTION;
    my $item   = _item( \%first );
    my %line   = ( op => 'claim', @others ? ( resources => [ $item, @others ] ) : %{$item} );
    for my $name (qw(ttl timeout max_hold lead)) {
        $line{$name} = seconds( $name, $arg->{$name} ) if defined $arg->{$name};
    }
    $line{data} = _data( $arg->{data} ) if defined $arg->{data};
    return \%line;
}

# One resource, and how it is wanted.
sub _item {
    my ($arg) = @_;
    invalid("what is held 'also' must be a name, or a hash with resource and shared or slots") if ref $arg ne 'HASH';
    check_names( $arg, \%IS_ITEM_OPTION );
    my ( $resource, $slots ) = @{$arg}{qw(resource slots)};
    if ( !defined $resource || ref $resource || $resource eq q{} ) {
        invalid("'resource' must be the name of a resource");
    }
    my %item = ( resource => "$resource" );
    $item{mode} = 'shared' if $arg->{shared};
    return \%item         if !defined $slots;
    invalid("'shared' and 'slots' can't be together") if $arg->{shared};
    if ( ref $slots ne 'ARRAY' || @{$slots} != 2 || grep { !defined || !m/\A[1-9]\d{0,8}\z/ } @{$slots} ) {
        invalid("'slots' must be how many of how many, as [1, 5]");
    }
    @item{qw(take of)} = map { 0 + $_ } @{$slots};
    return \%item;
}

# Text is JSON already, as the original interface wants it; everything else becomes JSON.
sub _data {
    my ($data) = @_;
    return $data if ref $data;
    my $json  = JSON::PP->new->allow_nonref;
    my $value = eval { [ $json->decode($data) ] };
    invalid("'data' must be a reference, or JSON text: $@") if !$value;
    return $value->[0];
}

1;

__END__

=encoding utf8

=head1 NAME

Leasehold::Parameters - checks what callers of the other modules give

=head1 DESCRIPTION

For this library only. Everything that makes no sense is a L<Leasehold::Error> of the class C<Invalid>.

=head1 FUNCTIONS

=head2 of_manager, of_claim

Check all parameters of a manager, or of a claim.

=head2 check_names, seconds

Check that no parameter is unknown, and that one is a number of seconds.

=head2 invalid

Throws C<Leasehold::Error::Invalid>.

=cut
